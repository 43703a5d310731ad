"""Runs that know of no job, and runs a part of whose journal cannot be read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from test_recover import UID, World

from slurmtrain.agent.gate import Admitted, TurnedAway, pass_gate
from slurmtrain.agent.job import JobContext
from slurmtrain.core import events as ev
from slurmtrain.core.decision import RunState
from slurmtrain.core.jobid import JobId
from slurmtrain.ops.status import Sight, build_status
from slurmtrain.ops.timeline import read_view
from slurmtrain.store.journal import JournalWriter, read_what_can_be_read


@pytest.fixture
def killed(tmp_path: Path) -> World:
    """``slurmtrain submit`` was killed before sbatch answered; ``world.job`` is what Slurm may have made of it."""
    world = World(tmp_path)
    world.run.submission(0).rename(world.run.submission(0).with_suffix(".pending"))
    for path in world.run.journal.iterdir():
        path.unlink()
    journal = JournalWriter(world.run.journal, "submit")
    journal.append(ev.RunCreated(at=0, who="user", name="run", user="u", uid=UID, host="login"))
    return world


def made(world: World, at: float) -> None:
    os.utime(world.run.plan, (at, at))


def job_of(world: World, job: JobId) -> JobContext:
    return JobContext(world.run, world.run.read_plan(), job, 0, 0, "n1", "n1", 1)


def test_a_run_that_slurm_never_got_ends_after_a_while_and_no_job_trains_it_later(killed: World) -> None:
    killed.slurm.cancel(killed.job)
    made(killed, time.time() - 60)
    killed.look()
    assert killed.run_state is RunState.PENDING, "its submit may still live"
    row = build_status(read_view(killed.run), Sight(), time.time())
    assert "watch --once" in row.reason
    made(killed, time.time() - 1000)
    killed.look()
    assert killed.run_state is RunState.FAILED
    row = build_status(read_view(killed.run), Sight(), time.time())
    assert "slurmtrain restart run-1" in row.reason
    late = pass_gate(job_of(killed, killed.job), killed.slurm, JournalWriter(killed.run.journal, "gate"))
    assert isinstance(late, TurnedAway)
    assert "restart run-1" in late.reason


def test_not_while_a_job_that_could_be_its_own_waits(killed: World) -> None:
    made(killed, killed.slurm.clock().timestamp())  # long ago by the watcher's clock
    killed.look()
    assert killed.run_state is RunState.PENDING
    passed = pass_gate(job_of(killed, killed.job), killed.slurm, JournalWriter(killed.run.journal, "gate"))
    assert isinstance(passed, Admitted), "it was accepted, and starts"


def test_nor_where_the_gate_of_its_job_is_faster(killed: World) -> None:
    made(killed, time.time() - 1000)
    pass_gate(job_of(killed, killed.job), killed.slurm, JournalWriter(killed.run.journal, "gate"))
    killed.slurm.cancel(killed.job)
    killed.look()
    assert killed.run_state is not RunState.FAILED


def test_a_watcher_that_died_between_the_two_writes_is_finished_by_the_next(killed: World) -> None:
    killed.slurm.cancel(killed.job)
    made(killed, time.time() - 1000)
    killed.run.submission(0).write_text('{"job_id": "", "claimed_by": "watcher"}')
    killed.look()
    assert killed.run_state is RunState.FAILED


def test_one_unreadable_file_of_the_journal_hides_no_run_and_nobody_acts_on_the_rest(tmp_path: Path) -> None:
    told: list[object] = []
    world = World(tmp_path)
    world.watcher.tell = lambda _run, what: told.append(what)
    world.start()
    unreadable = world.run.journal / "agent-1.jsonl"
    unreadable.mkdir()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    assert any(isinstance(what, str) and str(unreadable) in what for what in told)
    events, damage = read_what_can_be_read(world.run.journal)
    assert len(damage) == 1
    assert [event.state for event in events if isinstance(event, ev.JobSeen)] == ["FAILED"], "it is observed"
    assert world.decisions == ["-"]
    assert not [call for call in world.slurm.calls if call.name == "requeue"]
    row = build_status(read_view(world.run), Sight(), time.time())
    assert (row.name, row.job_id, row.attempt) == ("run", "1", 0)
    assert str(unreadable) in row.damage[0]
    unreadable.rmdir()
    world.look()
    assert world.decisions == ["requeue"]
