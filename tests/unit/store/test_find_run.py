"""Which run a name means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.errors import NotFoundError, UsageError
from slurmtrain.store.find import find_run, find_runs
from slurmtrain.store.publish import to_json


def make(store: Path, run_id: str, written: float = 0, job: str | None = None) -> None:
    run = store / "runs" / run_id
    (run / "submissions").mkdir(parents=True)
    (run / "plan.json").write_text("{}")
    os.utime(run / "plan.json", (written, written))
    if job:
        (run / "submissions" / "000.json").write_bytes(to_json({"job_id": job}))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    make(tmp_path, "gpt-20261129-1200-aaaaaaaa", 10, job="7")
    make(tmp_path, "gpt-20261129-1201-bbbbbbbb", 30)
    make(tmp_path, "gpt-20261129-1201-cccccccc", 20)
    make(tmp_path, "gpt-small-20261130-1200-dddddddd", 40)
    make(tmp_path, "other-20261128-0900-eeeeeeee", 50)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("gpt", "gpt-20261129-1201-bbbbbbbb"),
        ("gpt-small", "gpt-small-20261130-1200-dddddddd"),
        ("gpt-s", "gpt-small-20261130-1200-dddddddd"),
        ("gpt-20261129-1200", "gpt-20261129-1200-aaaaaaaa"),
        ("gpt-20261129-1201-c", "gpt-20261129-1201-cccccccc"),
        ("oth", "other-20261128-0900-eeeeeeee"),
        ("7", "gpt-20261129-1200-aaaaaaaa"),
    ],
)
def test_a_name_means_its_newest_run_and_a_beginning_the_only_one(store: Path, name: str, run: str) -> None:
    assert find_run(store, name).run_id == run


@pytest.mark.parametrize("name", ["gp", "gpt-2026", "nothing", "", "../gpt", "99", "g*"])
def test_what_is_no_name_or_several_is_said(store: Path, name: str) -> None:
    with pytest.raises(NotFoundError):
        find_run(store, name)


class TestArrays:
    """A group's name means all its runs, or one where a number follows."""

    GROUP = "sweep-20261129-1300-ffffffff"

    @pytest.fixture
    def store(self, store: Path) -> Path:
        for task in (0, 1, 12):
            make(store, f"{self.GROUP}-{task}", job=f"99_{task}")
        group = store / "groups" / self.GROUP
        group.mkdir(parents=True)
        (group / "group.json").write_bytes(to_json({"tasks": [0, 1, 12, 13]}))
        (group / "submission.json").write_bytes(to_json({"job_id": "99"}))
        return store

    @pytest.mark.parametrize("name", [GROUP, "sweep", "sw", "99", "sweep-20261129"])
    def test_all_runs(self, store: Path, name: str) -> None:
        assert [run.run_id for run in find_runs(store, name)] == [f"{self.GROUP}-{task}" for task in (0, 1, 12)]
        with pytest.raises(UsageError, match=f"array of 3 runs.*{self.GROUP}-0"):
            find_run(store, name)

    @pytest.mark.parametrize(
        ("name", "task"), [(f"{GROUP}-1", 1), ("sweep-1", 1), ("99_12", 12), ("sw-12", 12), ("99-0", 0)]
    )
    def test_one_run(self, store: Path, name: str, task: int) -> None:
        assert find_run(store, name).run_id == f"{self.GROUP}-{task}"
        assert [run.run_id for run in find_runs(store, name)] == [f"{self.GROUP}-{task}"]

    @pytest.mark.parametrize("name", ["sweep-13", "sweep-7", "99_7", "gpt-3", "other-1", "sweep-x"])
    def test_no_run(self, store: Path, name: str) -> None:
        with pytest.raises(NotFoundError):
            find_runs(store, name)

    def test_plain_runs_are_found_as_before(self, store: Path) -> None:
        assert find_run(store, "gpt").run_id == "gpt-20261129-1201-bbbbbbbb"
        assert [run.run_id for run in find_runs(store, "7")] == ["gpt-20261129-1200-aaaaaaaa"]

    def test_a_newer_run_of_the_same_name_comes_first(self, store: Path) -> None:
        make(store, "sweep-20261130-1300-aaaaaaaa")
        assert find_run(store, "sweep").run_id == "sweep-20261130-1300-aaaaaaaa"
        assert len(find_runs(store, self.GROUP)) == 3

    def test_a_group_whose_record_is_damaged_still_leaves_its_runs(self, store: Path) -> None:
        (store / "groups" / self.GROUP / "group.json").write_text("{")
        assert find_run(store, f"{self.GROUP}-1").run_id == f"{self.GROUP}-1"
        with pytest.raises(NotFoundError, match=r"group\.json"):
            find_runs(store, self.GROUP)
