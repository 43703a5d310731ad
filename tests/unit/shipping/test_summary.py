"""What explain tells of a run's remote copy, from what this side wrote down."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import Slurm
from make_run import end_run, make_run

from slurmtrain.cli.explain import command as explain_command
from slurmtrain.cli.prune import command as prune_command
from slurmtrain.cli.ship import command as ship_command
from slurmtrain.core.retention import Limits
from slurmtrain.ops.explain import explain_run
from slurmtrain.ops.page import make_page
from slurmtrain.ops.prune import Wanted, prune
from slurmtrain.ops.shipping.ledger import read_state, write_state
from slurmtrain.ops.shipping.shipper import Order, Shipper, make_pace
from slurmtrain.ops.shipping.summary import RemoteCopy, read_copy, say_copy
from slurmtrain.store.rundir import RunDir

DAY = 86400.0


def _ship(run: RunDir) -> None:
    plan = run.read_plan()
    pace = make_pace(plan.spec.ship, 5.0, lambda _text: None)
    Shipper(Order(run, plan, plan.spec.ship, {}), pace, lambda _text: None).ship()


def _copy(run: RunDir) -> RemoteCopy:
    found = read_copy(run, run.read_plan().spec)
    assert found is not None
    return found


def _explained(run: RunDir) -> str:
    done = CliRunner().invoke(explain_command, [run.run_id, "--store", str(run.path.parent.parent)])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_it_tells_what_is_there_and_what_is_behind(tmp_path: Path) -> None:
    run, url = make_run(tmp_path, f"file://{tmp_path}/remote"), f"file://{tmp_path}/remote"
    assert say_copy(_copy(run)) == f"nothing is in {url}/{run.run_id} yet"
    _ship(run)
    assert say_copy(_copy(run)).startswith(f"up to date in {url}/{run.run_id}, and not final yet; last looked at 20")
    with run.log_file("1").open("a") as stream:
        stream.write("x" * 99 + "\n")
    run.path.joinpath("attempts/000/scene/n1/more.txt").write_text("new")
    copy = _copy(run)
    assert (copy.behind, copy.behind_bytes, copy.files) == (2, 103, 6)
    assert "2 of 6 files (103 B) are not in" in _explained(run)
    assert f"`slurmtrain ship {run.run_id}` sends" in _explained(run)
    end_run(run)
    _ship(run)
    assert say_copy(_copy(run)).startswith(f"complete in {url}/{run.run_id}; last looked at 20")
    found = explain_run(run, None, time.time())
    told = found.to_dict()["remote_copy"]
    assert (told["complete"], told["behind"], told["url"]) == (True, 0, f"{url}/{run.run_id}")
    assert told["looked_at"].endswith("Z")
    assert say_copy(_copy(run)) in make_page(found, (), time.time())
    assert say_copy(_copy(run)).replace("  ", " ") in _explained(run)


def test_a_storage_that_refuses_is_told(tmp_path: Path) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote")
    _ship(run)
    state = read_state(run.ship)
    write_state(run.ship, type(state)(state.url, state.looked_at, problem="the credentials have expired"))
    assert "the credentials have expired" in _explained(run)


@pytest.mark.parametrize("at", [float("nan"), 1e300, -5.0, 0.0])
def test_a_damaged_record_of_the_copy_breaks_nothing(tmp_path: Path, at: float) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote")
    _ship(run)
    state = read_state(run.ship)
    write_state(run.ship, type(state)(state.url, at, problem="x\x1b[2J\ny"))
    assert "\x1b" not in _explained(run)
    assert explain_run(run, None, time.time()).to_dict()["remote_copy"]["looked_at"] is None


def test_a_run_that_ships_nothing_has_no_copy(tmp_path: Path) -> None:
    run = make_run(tmp_path, None)
    assert read_copy(run, run.read_plan().spec) is None
    assert explain_run(run, None, time.time()).to_dict()["remote_copy"] is None


@pytest.mark.parametrize("trimmed", [False, True])
def test_prune_says_that_the_copy_stays_and_a_trimmed_run_still_knows_it(tmp_path: Path, *, trimmed: bool) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote", keep_days=7)
    end_run(run)
    _ship(run)
    if trimmed:
        (run.path / "results.csv").write_text("a person's\n")
    (row,) = prune(tmp_path, [run], Slurm(), Wanted(Limits(older_than_s=DAY), dry_run=True), time.time() + 40 * DAY)
    assert (row.action, row.remote) == ("trimmed" if trimmed else "deleted", f"file://{tmp_path}/remote/{run.run_id}")
    prune(tmp_path, [run], Slurm(), Wanted(Limits(older_than_s=DAY)), time.time() + 40 * DAY)
    assert (tmp_path / "remote" / run.run_id / "manifest.json").exists()
    if trimmed:
        assert not run.ship.exists()
        assert f"complete in file://{tmp_path}/remote" in _explained(run)


def test_expire_all_looks_at_runs_that_have_nothing_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, f"file://{tmp_path}/remote", keep_days=7)
    end_run(run)
    _ship(run)
    words = ["--all", "--expire", "--dry-run", "--store", str(tmp_path)]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 40 * DAY)
    done = CliRunner().invoke(ship_command, words)
    assert f"would delete 6 objects of {run.run_id}" in done.output, done.output
    done = CliRunner().invoke(prune_command, ["--older-than", "30d", "--dry-run", "--store", str(tmp_path)])
    assert "1 of them has a remote copy, which stays" in done.output.replace("\n", " "), done.output
