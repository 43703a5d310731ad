"""What the crash test found: each case by itself."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from test_recover import SEGFAULT, World

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.events import AttemptStarted
from slurmtrain.core.jobstate import parse_job_state
from slurmtrain.core.run import fold
from slurmtrain.errors import StoreError
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.ops.ended import FIRST_LINE, find_execution_end
from slurmtrain.ops.launch_exit import LaunchExit, write_launch_exit
from slurmtrain.ops.observe import Observation
from slurmtrain.slurm.client import AccountingRecord
from slurmtrain.store import publish
from slurmtrain.store.journal import read_journal
from slurmtrain.store.rundir import AttemptDir
from slurmtrain.testing import SignalSent

pytestmark = pytest.mark.one_python  # before 3.11 pathlib keeps functions of os that are replaced here


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def exit_of(world: World, code: int, stop_reason: str | None = None) -> None:
    """The agent noted the end of its launch, and died."""
    end = LaunchExit(code, code, time.time() - 9, time.time(), 0, 99, stop_reason)
    attempt = world.run.read_attempts()[-1]
    attempt.launch(0).mkdir(parents=True, exist_ok=True)
    write_launch_exit(attempt, 0, end)


def test_a_finished_training_whose_script_died_before_the_decision_is_complete(world: World) -> None:
    world.start(log="0: done\n")
    exit_of(world, 0)
    world.slurm.finish(world.job, 0, 9)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["complete"]
    assert world.run_state is RunState.COMPLETED
    assert [event.exit_code for event in read_journal(world.run.journal) if isinstance(event, ev.LaunchEnded)] == [0]


@pytest.mark.parametrize("accounting", [True, False])
def test_a_launch_that_left_because_slurm_ended_the_job_is_not_complete(tmp_path: Path, accounting: bool) -> None:
    world = World(tmp_path, accounting=accounting)
    world.start(log="0: saved\n")
    exit_of(world, 0, None if accounting else "slurm")
    world.slurm.advance(3700)  # its time limit
    world.look()
    assert world.decisions == ["requeue"]


def test_a_script_that_the_gate_turned_away_is_no_success(world: World) -> None:
    """It exits 0, and nothing shows that it trained."""
    world.slurm.advance(5)
    world.slurm.finish(world.job, 0)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["requeue"]


def test_a_job_that_nobody_saw_and_that_is_gone_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.slurm.advance(5)
    world.run.log_file(str(world.job)).write_text("0: step 5\n")
    world.slurm.finish(world.job, 1)
    world.slurm.advance(400)
    world.look()
    assert world.decisions == ["requeue"]
    assert sorted(world.run.read_submissions()) == [0, 1]


def test_nor_is_one_that_never_started(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is RunState.STOPPED


def test_a_job_that_was_seen_waiting_and_has_run_since_was_not_cancelled(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.look()  # waiting
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    world.slurm.finish(world.job, 139)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is not RunState.STOPPED
    assert sorted(world.run.read_submissions()) == [0, 1]


def test_a_purged_cancel_is_believed_although_the_launch_has_an_exit_code(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.start(log="0: step 5\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 ***\n")
    world.journal.append(ev.LaunchEnded(at=1, who="agent", attempt=0, launch=0, exit_code=143, stop_reason="slurm"))
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is RunState.STOPPED
    assert sorted(world.run.read_submissions()) == [0]


def test_an_attempt_that_slurm_requeued_is_decided_although_its_job_was_cancelled_in_the_queue(world: World) -> None:
    world.start()
    world.slurm.requeue(world.job, only_running=True)
    world.slurm.advance(10)
    world.slurm.cancel(world.job)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["requeue", "leave"]


# --- claims


def test_one_execution_is_one_attempt_whoever_claims_it(world: World) -> None:
    owner = {"job_id": "1", "restart_count": 0}
    first = claim_attempt(world.run, {**owner, "batch_pid": 1})
    again = claim_attempt(world.run, {**owner, "claimed_by": "watcher"})
    assert again == first
    assert (first.read_owner() or {}).get("batch_pid") == 1
    assert claim_attempt(world.run, {"job_id": "1", "restart_count": 1}).number == 1


def test_an_attempt_never_lies_there_without_its_owner(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = os.rename

    def rename(source: str, target: str) -> None:
        seen.append((world.run.read_attempts(), (Path(source) / "owner.json").exists()))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    claim_attempt(world.run, {"job_id": "1", "restart_count": 0})
    assert seen == [([], True)]


def test_a_rename_reported_as_failed_although_it_was_made_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def rename(source: str, target: str) -> None:
        real(source, target)
        raise FileNotFoundError(2, "No such file or directory", source)

    monkeypatch.setattr(os, "rename", rename)
    attempt = claim_attempt(world.run, {"job_id": "1", "restart_count": 0, "batch_pid": 7})
    assert (attempt.read_owner() or {})["batch_pid"] == 7


def test_another_hosts_claim_that_cannot_be_seen_yet_is_waited_for(world: World) -> None:
    """Its number is agreed and its directory lies there; this host does not see the owner."""
    (world.run.attempts / "claim-1-0-0.json").write_text(json.dumps({"attempt": 0}))
    hidden = world.run.attempt(0).path
    hidden.mkdir()
    (hidden / "nodes").mkdir()
    with pytest.raises(StoreError, match="just now"):
        claim_attempt(world.run, {"job_id": "1", "restart_count": 0})
    publish.publish_once(world.run.attempt(0).owner, publish.to_json({"job_id": "1", "restart_count": 0}))
    assert claim_attempt(world.run, {"job_id": "1", "restart_count": 0}).number == 0


def test_a_watcher_that_died_after_its_claim_leaves_a_whole_story(world: World) -> None:
    world.slurm.advance(5)
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    claim_attempt(world.run, {"job_id": str(world.job), "restart_count": 0, "claimed_by": "watcher"})
    world.look()
    assert world.decisions == ["requeue"]
    assert any(isinstance(event, AttemptStarted) for event in read_journal(world.run.journal))


def test_a_job_of_which_only_the_log_tells_is_found(world: World) -> None:
    """The store was full while it was submitted and while it ran."""
    world.slurm.advance(5)
    world.run.log_file(str(world.job)).write_text(SEGFAULT)
    world.slurm.finish(world.job, 139)
    world.run.submission(0).rename(world.run.submission(0).with_suffix(".pending"))
    for path in world.run.journal.iterdir():
        path.unlink()
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["requeue"]
    assert world.state() == "PENDING"


def test_a_cancel_after_the_launch_had_failed_by_itself_is_believed_too(tmp_path: Path) -> None:
    """The launch's own end says why it failed; the line behind it says that the job was cancelled."""
    world = World(tmp_path, accounting=False)
    world.start()
    size = world.run.log_file(str(world.job)).stat().st_size
    world.journal.append(ev.LaunchEnded(at=1, who="agent", attempt=0, launch=0, exit_code=139, log_end=size))
    with world.run.log_file(str(world.job)).open("a") as log:
        log.write("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 ***\n")
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is RunState.STOPPED
    assert sorted(world.run.read_submissions()) == [0]


# --- jobs that Slurm has forgotten, without accounting


def test_a_cancel_between_the_gate_and_the_launch_is_believed(tmp_path: Path) -> None:
    """The launch's part of the log begins behind slurmstepd's line."""
    world = World(tmp_path, accounting=False)
    log = world.run.log_file(str(world.job))
    log.write_text("slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 ***\n")
    world.start(log="0: srun: error: Unable to create step\n")
    world.journal.append(ev.LaunchStarted(at=1, who="agent", attempt=0, launch=0, log_offset=70))
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is RunState.STOPPED
    assert sorted(world.run.read_submissions()) == [0]


def test_nor_is_one_before_the_gate_taken_for_a_failure(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.slurm.advance(5)
    cancelled = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 ***\n"
    world.run.log_file(str(world.job)).write_text(f"{FIRST_LINE.format(job_id=1, restart_count=0)} on n1\n{cancelled}")
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert world.run_state is RunState.STOPPED


@pytest.mark.parametrize("begins", [True, False])
def test_an_execution_whose_agents_died_early_is_told_from_one_that_was_cancelled_in_the_queue(
    tmp_path: Path, begins: bool
) -> None:
    """It was last seen waiting; the batch script's first line says whether it has begun since."""
    world = World(tmp_path, accounting=False)
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    world.slurm.requeue(world.job, only_running=True)
    world.slurm.advance(20)
    world.look()
    assert world.state() == "PENDING"
    if begins:
        with world.run.log_file(str(world.job)).open("a") as log:
            log.write(f"{FIRST_LINE.format(job_id=1, restart_count=1)} on n1\nslurmtrain: the agent died\n")
    world.slurm.cancel(world.job)  # in either case it is gone
    world.slurm.advance(400)
    world.look()
    assert (world.run_state is RunState.STOPPED) is not begins
    assert sorted(world.run.read_submissions()) == ([0, 1] if begins else [0])


def test_a_claim_that_the_dead_agent_could_not_write_down_shows_that_it_began(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.look()  # waiting
    world.slurm.advance(5)
    world.run.log_file(str(world.job)).write_text("0: step\n")
    claim_attempt(world.run, {"job_id": str(world.job), "restart_count": 0, "batch_pid": 7})
    world.slurm.finish(world.job, 1)
    world.slurm.advance(400)
    world.look()
    assert world.decisions == ["requeue"]


# --- executions that claim in another order than Slurm began them


def test_a_decision_is_carried_out_although_an_earlier_execution_claimed_later(world: World) -> None:
    world.start()
    owner = world.run.read_attempts()[0].read_owner() or {}
    claim_attempt(world.run, {**owner, "restart_count": -1})  # a ghost, of before this execution
    attempt = world.run.attempt(0)
    decision = Decision(Action.REQUEUE, RunState.PENDING, "native_crash", "why", "program")
    attempt.publish_decision(decision_to_dict(decision))
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    assert world.state() == "PENDING"


@pytest.mark.parametrize(
    ("word", "seen", "began_again", "found"),
    [
        ("NODE_FAIL", None, False, (1, "CANCELLED")),  # cancelled while it came back
        ("NODE_FAIL", ("RUNNING", 0), False, (1, "CANCELLED")),
        ("NODE_FAIL", None, True, (1, "UNKNOWN")),  # slurmdbd has not been told of it yet
        ("NODE_FAIL", ("NODE_FAIL", 0), False, (0, "NODE_FAIL")),  # Slurm might not requeue it
        ("REQUEUED", None, False, (1, "CANCELLED")),
        ("REQUEUED", None, True, (1, "UNKNOWN")),
        ("PREEMPTED", ("RUNNING", 0), False, (1, "CANCELLED")),  # before anybody had looked
        ("PREEMPTED", ("COMPLETING", 0), False, (0, "PREEMPTED")),  # a partition with a PreemptMode of its own
        ("PREEMPTED", ("PENDING", 1), False, (1, "CANCELLED")),
    ],
)
def test_a_job_that_is_gone_after_its_last_row_came_back_or_not(
    world: World, word: str, seen: tuple[str, int] | None, began_again: bool, found: tuple[int, str]
) -> None:
    world.start()
    if seen is not None:
        job_seen = ev.JobSeen(at=1, who="watcher", attempt=0, job_id="1", restart_count=seen[1], state=seen[0])
        world.journal.append(job_seen)
    if began_again:
        claim_attempt(world.run, {"job_id": "1", "restart_count": 1, "batch_pid": 7})
    now = datetime.now(timezone.utc)
    ended = now - timedelta(seconds=400)
    row = AccountingRecord(world.job, parse_job_state(word), 0, 0, None, "n1", "", ended, ended, ended, None)
    observation = Observation(now, {}, {world.job: (row,)}, preempt_mode="REQUEUE")
    end = find_execution_end(world.run, fold(read_journal(world.run.journal)), world.job, observation)
    assert end is not None
    assert (end.restart_count, str(end.state)) == found


def test_a_preemption_that_requeues_nothing_is_an_end(world: World) -> None:
    world.start()
    ended = (now := datetime.now(timezone.utc)) - timedelta(seconds=400)
    row = AccountingRecord(world.job, parse_job_state("PREEMPTED"), 0, 0, None, "n1", "", ended, ended, ended, None)
    observation = Observation(now, {}, {world.job: (row,)}, preempt_mode="CANCEL")
    end = find_execution_end(world.run, fold(read_journal(world.run.journal)), world.job, observation)
    assert end is not None
    assert (end.restart_count, str(end.state)) == (0, "PREEMPTED")


@pytest.mark.parametrize("accounting", [True, False])
@pytest.mark.parametrize("how", ["preempted", "lost", "requeued by hand"])
def test_a_cancel_right_after_slurm_took_the_job_is_believed(tmp_path: Path, how: str, accounting: bool) -> None:
    """On its way back a job leaves no trace of its cancel: neither in accounting nor in its log."""
    world = World(tmp_path, accounting=accounting)
    controller = world.slurm.controller
    controller.on_signal = lambda sent: write_end_line(world, sent)
    world.start()
    job = world.slurm.job(world.job)
    if how == "preempted":
        controller.evict(job)
    elif how == "lost":
        controller.lose(job)
    else:
        controller.requeue(job, only_running=True)
    world.slurm.cancel_as(world.job, 0)
    world.slurm.advance(100)  # nobody looks until Slurm has forgotten the job
    world.look()
    assert fold(read_journal(world.run.journal)).state is RunState.STOPPED
    assert world.slurm.observe().jobs == {}


def test_an_earlier_requeue_in_the_log_is_no_end_of_this_execution(tmp_path: Path) -> None:
    world = World(tmp_path, accounting=False)
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    line = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 DUE TO JOB REQUEUE ***\n"
    world.slurm.requeue(world.job, only_running=True)
    world.slurm.advance(150)
    world.start(log=f"{line}{FIRST_LINE.format(job_id=1, restart_count=1)} on n1\n{SEGFAULT}")
    world.slurm.finish(world.job, 0, 9)
    world.slurm.advance(100)
    world.look()
    assert fold(read_journal(world.run.journal)).state is not RunState.STOPPED
    assert len(world.slurm.observe().jobs) == 1  # it goes on as a new job


def write_end_line(world: World, sent: SignalSent) -> None:
    """As slurmstepd does."""
    if sent.target == "batch":
        at = f"CANCELLED AT 2026-11-29T17:11:58 {sent.why}".rstrip()
        with world.run.log_file(str(sent.job_id)).open("a") as log:
            log.write(f"slurmstepd: error: *** JOB {sent.job_id} ON n1 {at} ***\n")


def test_a_job_that_its_agent_had_requeued_was_cancelled_if_it_is_gone(tmp_path: Path) -> None:
    """No accounting, and nobody saw it wait: only the agent's own word says that Slurm had it in the queue again."""
    world = World(tmp_path, accounting=False)
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    world.slurm.requeue(world.job, only_running=True)
    world.journal.append(ev.Acted(at=2, who="agent", attempt=0, action="requeue", accepted=True))
    world.slurm.cancel_as(world.job, 0)
    world.slurm.advance(100)
    world.look()
    assert fold(read_journal(world.run.journal)).state is RunState.STOPPED
    assert world.slurm.observe().jobs == {}


@pytest.mark.parametrize(("action", "state"), [(Action.COMPLETE, RunState.COMPLETED), (Action.HOLD, RunState.HELD)])
def test_an_execution_that_its_gate_turned_away_is_no_attempt_although_the_journal_comes_late(
    world: World, monkeypatch: pytest.MonkeyPatch, action: Action, state: RunState
) -> None:
    """The gate on another host decided about the attempt before; its files are not to be seen here yet."""
    world.start()
    world.slurm.requeue(world.job, only_running=True)
    world.slurm.advance(150)
    attempt = world.run.attempt(0)
    seen = AttemptDir.read_decision
    late = iter([None, None])

    def read(self: AttemptDir) -> dict[str, Any] | None:
        return next(late, None) if self.path == attempt.path and not published else seen(self)

    published: list[bool] = []

    def publish_late(self: AttemptDir, record: Mapping[str, Any]) -> bool:
        published.append(True)
        return publish(self, record)

    publish = AttemptDir.publish_decision
    world.decide(action, state)
    monkeypatch.setattr(AttemptDir, "read_decision", read)
    monkeypatch.setattr(AttemptDir, "publish_decision", publish_late)
    world.slurm.finish(world.job, 0)
    world.slurm.advance(20)
    world.look()
    assert len(world.run.read_attempts()) == 1
    assert fold(read_journal(world.run.journal)).state is state


def test_the_end_that_was_seen_last_is_not_that_of_an_execution_that_began_since(world: World) -> None:
    """Without accounting: a watcher requeued the job and died, its next execution was lost and forgotten."""
    world.start()
    for restart in (0, 1):
        started = ev.AttemptStarted(
            at=2 + restart, who="gate", attempt=restart, job_id="1", restart_count=restart, host="n1", nodes="n1"
        )
        world.journal.append(started)
    world.journal.append(ev.JobSeen(at=2.5, who="watcher", attempt=0, job_id="1", restart_count=0, state="FAILED"))
    observation = Observation(datetime.now(timezone.utc), {}, {}, accounting=False)
    end = find_execution_end(world.run, fold(read_journal(world.run.journal)), world.job, observation)
    assert end is not None
    assert end.restart_count == 1
