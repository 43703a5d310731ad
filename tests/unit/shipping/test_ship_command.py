"""``slurmtrain ship`` as a person calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from make_run import end_run, make_run

from slurmtrain.cli import ship as ship_command
from slurmtrain.cli.main import main
from slurmtrain.ops.shipping.start import LEASE, find_program, start_beside_training
from slurmtrain.store.lease import Lease


class Call:
    """The whole command line: exit code and both outputs."""

    def __init__(self, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._store = store
        self._capsys = capsys

    def __call__(self, *words: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["ship", "--store", str(self._store), *words])
        said = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, said
        return said.out + said.err


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(tmp_path, capsys)


def test_it_says_what_it_sent_and_what_belongs_there(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote")
    end_run(run)
    planned = call(run.run_id, "--dry-run")
    assert "6 files belong into" in planned
    assert "so far: not complete" in planned
    assert not (tmp_path / "remote").exists()
    done = call(run.run_id)
    assert "sent 6 objects" in done
    assert done.endswith("the run is over and its copy complete\n")
    (row,) = json.loads(call(run.run_id, "--json"))
    assert (row["sent"], row["unchanged"], row["complete"], row["error"]) == (0, 6, True, None)
    assert "so far: complete" in call(run.run_id, "--dry-run")
    assert call("--all") == "", "nothing is due"


def test_to_is_for_runs_that_do_not_say_where(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path, None)
    assert "no ship.url in its job file" in call(run.run_id, code=2)
    call(run.run_id, "--to", f"file://{tmp_path}/there")
    assert (tmp_path / "there" / run.run_id / "manifest.json").exists()


def test_a_copy_to_somewhere_else_leaves_the_one_of_the_job_file_due(call: Call, tmp_path: Path) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/here")
    end_run(run)
    assert "its copy complete" in call(run.run_id, "--to", f"file://{tmp_path}/there")
    assert "so far: not complete" in call(run.run_id, "--dry-run")
    call("--all")
    assert "so far: complete" in call(run.run_id, "--dry-run")
    assert "sent 0 objects" in call(run.run_id, "--to", f"file://{tmp_path}/there")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "name runs, or say --all"),
        (("x", "--all"), "name runs, or say --all"),
        (("--all", "--follow"), "--follow is for one run"),
        (("x", "--to", "s3://key:secret@b/p"), "credentials do not belong"),
        (("x", "--rate", "fast"), "write it like 20MB/s"),
    ],
)
def test_what_makes_no_sense_is_told(call: Call, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "runs/x").mkdir(parents=True)
    assert sentence in call(*words, code=2)


def test_a_trouble_that_lasts_is_told_once_for_all_runs(call: Call, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = make_run(tmp_path, f"file://{tmp_path}/file/below")
    assert "Not a directory" in call(run.run_id, code=1)
    state = json.loads((run.ship / "state.json").read_text())
    (run.ship / "state.json").write_text(json.dumps({**state, "retry_at": 1.0}))
    assert call("--all", code=1) == ""


def test_while_another_ships_the_work_is_left_to_it(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship_command, "_WAIT_S", 0.1)
    run = make_run(tmp_path, f"file://{tmp_path}/remote")
    assert Lease(run.ship / LEASE, 60).acquire() is None
    assert "is shipped by" in call(run.run_id)
    assert not (tmp_path / "remote").exists()


def test_a_program_that_is_not_there_starts_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote")
    assert start_beside_training(["/nowhere/slurmtrain"], run.path, {}) is None
    assert find_program()[0].startswith("/")
