"""Which run a name means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.errors import NotFoundError
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import find_run


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
