"""The watcher against the Slurm in memory: each way in which nobody inside the job could decide.

What the job's script would have written is written by the test; asserted is Slurm's state and the decision files.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from pathlib import Path

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.run import fold
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.errors import SlurmRefusedError
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.ops.observe import Observation
from slurmtrain.ops.recover import Care, look_after
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import FaultKind, MemoryConfig, MemorySlurm
from slurmtrain.watch.loop import Pass, Watcher

RULES = load_rules().to_json()  # half a second of work

UID = 1000
SEGFAULT = "0: step 5\nsrun: error: n1: task 0: Segmentation fault\n"


class World:
    """A store with one run, a Slurm in memory, and a watcher."""

    def __init__(self, root: Path, *, accounting: bool = True) -> None:
        self.store = root
        config = MemoryConfig(uid=UID, accounting=accounting, min_job_age=timedelta(seconds=30))
        self.slurm = MemorySlurm(config=config)
        self.run = RunDir(root / "runs" / "run-1")
        for folder in (self.run.journal, self.run.attempts, self.run.logs, self.run.submissions):
            folder.mkdir(parents=True)
        spec = Spec(command=("true",), name="run")
        self.run.plan.write_text(json.dumps({"run_id": "run-1", "spec": spec_to_dict(spec), "uid": UID}))
        self.run.rules.write_text(RULES)
        self.run.batch_script.write_text("#!/bin/bash\n#SBATCH -N1 -t 60 --requeue\n")
        self.journal = JournalWriter(self.run.journal, "test")
        self.journal.append(ev.RunCreated(at=0, who="user", name="run", user="u", uid=UID, host="login"))
        self.job = self.slurm.submit(self.run.batch_script)
        self.journal.append(ev.Submitted(at=0, who="user", submission=0, job_id=str(self.job)))
        publish_once(self.run.submission(0), to_json({"job_id": str(self.job)}))
        self.watcher = Watcher(self.store, self.slurm, 60.0)

    def start(self, *, log: str = SEGFAULT) -> None:
        """The job starts; its agent claims the attempt and launches."""
        self.slurm.advance(5)
        record = self.slurm.job(self.job)
        owner = {"job_id": str(self.job), "restart_count": record.restart_count, "host": "n1", "batch_pid": 1}
        attempt = claim_attempt(self.run, owner)
        where = {"attempt": attempt.number, "launch": 0}
        self.journal.catch_up()
        self.journal.append(
            ev.AttemptStarted(
                at=1, who="gate", attempt=attempt.number, job_id=str(self.job), restart_count=record.restart_count,
                host="n1", nodes="n1",
            ),
            ev.LaunchStarted(at=1, who="agent", **where),
        )  # fmt: skip
        with self.run.log_file(str(self.job)).open("a") as stream:
            stream.write(log)

    def decide(self, action: Action, state: RunState) -> None:
        """The agent published a decision and died before acting."""
        attempt = self.run.read_attempts()[-1]
        attempt.publish_decision(decision_to_dict(Decision(action, state, "native_crash", "why", "program")))

    def look(self) -> Pass:
        return self.watcher.look_once()

    def state(self, job: JobId | None = None) -> str:
        return str(self.slurm.observe([job or self.job]).jobs[job or self.job].state)

    @property
    def decisions(self) -> list[str]:
        found = [attempt.read_decision() for attempt in self.run.read_attempts()]
        return [d["action"] if d else "-" for d in found]

    @property
    def run_state(self) -> RunState:
        return fold(read_journal(self.run.journal)).state


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_dead_script_is_requeued_at_once_and_once(world: World) -> None:
    world.start()
    world.slurm.finish(world.job, 0, 9)  # the batch script was killed
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["requeue"]
    assert world.state() == "PENDING"
    world.look()
    world.slurm.advance(5)
    assert world.state() == "RUNNING", "the start was moved from Slurm's two minutes to now"
    assert [call.name for call in world.slurm.calls].count("requeue") == 1


def test_a_permanent_cause_is_stopped_and_left(world: World) -> None:
    world.start(log="0: Traceback (most recent call last):\n0: ModuleNotFoundError: No module named 'x'\n")
    world.slurm.finish(world.job, 1)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["stop"]
    assert world.run_state is RunState.FAILED
    assert world.state() == "FAILED"


@pytest.mark.parametrize(("warned", "decision"), [(True, "requeue"), (False, "complete")])
def test_a_launch_without_the_agent_that_left_on_the_warning_is_continued(
    world: World, warned: bool, decision: str
) -> None:
    """The batch script ran the training, handed the warning on, and wrote that down."""
    world.slurm.advance(5)
    record = {"job_id": str(world.job), "restart_count": 0, "exit_code": 0, "stop_sent": warned, "terminated": False}
    (world.run.attempts / f"fallback-{world.job}-0.json").write_text(json.dumps(record))
    world.slurm.finish(world.job, 0)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == [decision]
    assert world.state() == ("PENDING" if warned else "COMPLETED")


def test_success_needs_slurms_word(world: World) -> None:
    world.start(log="0: done\n")
    world.slurm.finish(world.job, 0)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["complete"]
    assert world.run_state is RunState.COMPLETED


@pytest.mark.parametrize(("uid", "state"), [(UID, RunState.STOPPED), (0, RunState.TERMINATED)])
def test_a_cancel_is_never_undone(world: World, uid: int, state: RunState) -> None:
    world.start()
    world.slurm.cancel_as(world.job, uid)
    world.slurm.advance(60)
    for _ in range(3):
        world.look()
        world.slurm.advance(70)
    assert world.run_state is state
    assert "requeue" not in [call.name for call in world.slurm.calls]


def test_a_cancel_in_the_queue_is_an_end_too(world: World) -> None:
    world.look()
    world.slurm.cancel(world.job)
    world.slurm.advance(2)
    world.look()
    assert world.run_state is RunState.STOPPED


def test_a_cancel_between_decision_and_act_wins(world: World) -> None:
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    world.slurm.cancel(world.job)
    world.slurm.advance(60)
    world.look()
    assert world.run_state is RunState.STOPPED
    assert "requeue" not in [call.name for call in world.slurm.calls]
    world.slurm.advance(600)
    world.look()
    assert "submit" not in [call.name for call in world.slurm.calls[1:]]


def test_a_decision_that_was_not_carried_out_is_carried_out(world: World) -> None:
    world.start()
    world.decide(Action.REQUEUE, RunState.PENDING)
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    assert world.state() == "PENDING"
    assert world.decisions == ["requeue"], "decided once"


@pytest.mark.parametrize("action", [Action.STOP, Action.HOLD, Action.COMPLETE])
def test_a_decision_to_end_is_kept(world: World, action: Action) -> None:
    world.start()
    world.decide(action, RunState.FAILED)
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    world.look()
    assert world.state() == "FAILED"
    assert "requeue" not in [call.name for call in world.slurm.calls]


@pytest.mark.parametrize("accounting", [True, False])
def test_a_purged_job_goes_on_as_a_new_job_of_the_same_run(tmp_path: Path, accounting: bool) -> None:
    world = World(tmp_path, accounting=accounting)
    world.start()
    world.look()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(400)
    world.look()
    world.look()
    assert sorted(world.run.read_submissions()) == [0, 1], "one new job, not two"
    assert world.decisions == ["requeue"]


@pytest.mark.parametrize("seen", [True, False])
def test_a_purged_cancelled_job_stays_cancelled_without_accounting(tmp_path: Path, seen: bool) -> None:
    """Only the line that slurmstepd left in the log tells."""
    world = World(tmp_path, accounting=False)
    world.start(log="0: step 5\nslurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-29T17:11:58 ***\n")
    if seen:
        world.look()
    world.slurm.cancel(world.job)
    world.slurm.advance(400)
    world.look()
    assert sorted(world.run.read_submissions()) == [0]
    assert world.run_state is RunState.STOPPED


def test_slurm_that_does_not_answer_changes_nothing(world: World) -> None:
    world.start()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.slurm.inject(FaultKind.UNAVAILABLE, times=5)
    for _ in range(5):
        assert world.look().unknown
    assert world.decisions == ["-"]
    world.look()
    assert world.decisions == ["requeue"]


def test_a_lost_reply_of_the_requeue_is_not_repeated(world: World) -> None:
    world.start()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.slurm.inject(FaultKind.REPLY_LOST, "requeue")
    world.look()
    for _ in range(4):
        world.look()
        world.slurm.advance(3)
    assert world.slurm.job(world.job).restart_count == 1
    assert sorted(world.run.read_submissions()) == [0]


def test_a_job_that_slurm_requeued_itself_starts_now(world: World) -> None:
    world.start()
    world.slurm.fail_node(world.slurm.observe([world.job]).jobs[world.job].nodes)
    world.slurm.advance(10)
    record = world.slurm.observe([world.job]).jobs[world.job]
    assert record.restart_count == 1
    assert record.begin_time is not None
    world.look()
    world.slurm.advance(5)
    assert world.state() == "RUNNING"
    assert world.decisions == ["-"], "the gate of the new attempt decides about the old one"


@pytest.mark.parametrize(("left_s", "moved"), [(-10, 1), (2, 0), (60, 1), (3000, 0)])
def test_a_start_time_that_slurm_passed_over_is_mended(world: World, left_s: int, moved: int) -> None:
    """slurmctld does not look when a start time comes: until it does the job shows BeginTime."""
    world.start()
    world.slurm.requeue(world.job, only_running=True)
    world.slurm.advance(10)
    seen = world.slurm.observe([world.job])
    begin = seen.taken_at + timedelta(seconds=left_s)
    record = dataclasses.replace(seen.jobs[world.job], reason="BeginTime", begin_time=begin)
    state = fold(read_journal(world.run.journal))
    look = Observation(seen.taken_at, {world.job: record})
    look_after(Care(world.run, world.run.read_plan(), state, world.job, look, world.slurm, world.journal))
    assert [call.name for call in world.slurm.calls].count("update_pending") == moved


def test_a_job_that_may_not_be_requeued_becomes_a_new_one_without_the_bad_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused between the look and the act: the nodes that were decided about are avoided all the same."""
    world.start()
    bad = Decision(Action.REQUEUE, RunState.PENDING, "gpu_lost", "why", "infrastructure", exclude=("n1",))
    world.run.read_attempts()[-1].publish_decision(decision_to_dict(bad))
    world.slurm.finish(world.job, 1)
    world.slurm.advance(3)

    def refuse(_job_id: JobId, *, only_running: bool) -> None:
        raise SlurmRefusedError(f"Requested operation is presently disabled {only_running}")

    monkeypatch.setattr(world.slurm, "requeue", refuse)
    world.look()
    again = parse_job_id(world.run.read_submissions()[1])
    assert world.slurm.excluded_nodes(again) == "n1"


def test_a_finished_run_that_slurm_queued_again_is_cancelled(world: World) -> None:
    world.start(log="")
    world.decide(Action.COMPLETE, RunState.COMPLETED)
    world.run.done_file.touch()
    world.slurm.finish(world.job, 0)
    world.slurm.advance(3)
    world.slurm.requeue(world.job, only_running=False)
    world.slurm.advance(3)
    world.look()
    world.slurm.advance(3)
    assert world.state() == "CANCELLED"


def test_observe_only_writes_down_and_does_nothing(world: World) -> None:
    world.watcher = Watcher(world.store, world.slurm, 60.0, observe_only=True)
    world.start()
    world.look()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    seen = [e.state for e in read_journal(world.run.journal) if isinstance(e, ev.JobSeen)]
    assert seen == ["RUNNING", "FAILED"]
    assert world.decisions == ["-"]
    assert {call.name for call in world.slurm.calls} <= {"submit", "observe", "history"}


def test_one_query_for_all_runs(world: World, tmp_path: Path) -> None:
    for number in range(2, 30):
        copy = tmp_path / "runs" / f"run-{number}"
        copy.mkdir()
        other = RunDir(copy)
        for folder in (other.journal, other.attempts, other.logs, other.submissions):
            folder.mkdir()
        other.plan.write_text(world.run.plan.read_text())
        job = world.slurm.submit(world.run.batch_script)
        publish_once(other.submission(0), to_json({"job_id": str(job)}))
    world.slurm.advance(2)
    before = len(world.slurm.calls)
    assert world.look().runs == 29
    assert [call.name for call in world.slurm.calls[before:]] == ["observe"]


def test_a_damaged_run_is_told_and_the_others_are_looked_after(world: World, tmp_path: Path) -> None:
    broken = tmp_path / "runs" / "broken"
    (broken / "submissions").mkdir(parents=True)
    (broken / "submissions" / "000.json").write_text('{"job_id": "999"}')
    told: list[str] = []
    world.watcher = Watcher(world.store, world.slurm, 60.0, tell=lambda run, what: told.append(f"{run}: {what}"))
    world.start()
    world.slurm.finish(world.job, 139)
    world.slurm.advance(3)
    world.look()
    assert world.decisions == ["requeue"]
    assert any(line.startswith("broken: ") and "plan.json" in line for line in told)


def test_two_watchers_take_turns(world: World) -> None:
    from slurmtrain.watch.lease import Lease

    first, second = Lease(world.store, 60), Lease(world.store, 60)
    assert first.acquire() is None
    assert second.acquire() is not None
    first.give_back()
    assert second.acquire() is None


def test_where_slurm_refuses_the_requeue_the_new_job_avoids_the_same_nodes(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start()
    decision = Decision(Action.REQUEUE, RunState.PENDING, "ecc", "why", "infrastructure", exclude=("n1",))
    world.run.read_attempts()[-1].publish_decision(decision_to_dict(decision))
    world.slurm.finish(world.job, 1)
    world.slurm.advance(5)

    def refuse(name: str, moment: str) -> None:
        if (name, moment) == ("requeue", "before"):
            raise SlurmRefusedError("cannot requeue: Requested operation is presently disabled")

    world.slurm.on_call = refuse
    acted = [event for _, event in world.look().events if isinstance(event, ev.Acted)]
    new = JobId(int(world.run.read_submissions()[1]))
    assert world.slurm.excluded_nodes(new) == "n1"
    assert acted[0].accepted
    assert "without n1" in acted[0].detail
    assert "does not requeue" in acted[0].detail, "it says why there is a new job"
    assert "no longer has" not in acted[0].detail


def _lose_once_too_often(world: World) -> None:
    world.start()
    world.slurm.hold_for_max_requeue(world.job)
    world.slurm.advance(20)
    assert world.state() == "REQUEUE_HOLD"


def test_a_job_that_slurm_holds_for_good_goes_on_as_a_new_one(world: World) -> None:
    _lose_once_too_often(world)
    acted = [event for _, event in world.look().events if isinstance(event, ev.Acted)]
    new = JobId(int(world.run.read_submissions()[1]))
    assert world.state() == "CANCELLED"
    assert world.state(new) == "PENDING"
    assert world.decisions == ["requeue"], "the execution that was lost is decided about, and counts"
    assert f"submitted job {new} instead of job {world.job}" in acted[-1].detail
    for _ in range(3):
        world.slurm.advance(20)
        world.look()
    assert sorted(world.run.read_submissions()) == [0, 1], "one new job, however often it is looked"
    assert world.run_state.value != "Stopped", "our cancel is no person's"


def test_a_watcher_that_died_between_the_new_job_and_the_old(world: World) -> None:
    _lose_once_too_often(world)

    def die(name: str, moment: str) -> None:
        if (name, moment) == ("cancel", "before"):
            raise KeyboardInterrupt

    world.slurm.on_call = die
    with pytest.raises(KeyboardInterrupt):
        world.look()
    world.slurm.on_call = None
    assert world.state() == "REQUEUE_HOLD"
    world.look()
    assert world.state() == "CANCELLED", "the next one cancels it"
    assert sorted(world.run.read_submissions()) == [0, 1]


def test_where_slurm_takes_no_new_job_an_administrator_is_named_once(world: World) -> None:
    _lose_once_too_often(world)

    def refuse(name: str, moment: str) -> None:
        if (name, moment) == ("submit", "before"):
            raise SlurmRefusedError("cannot submit: Job violates accounting/QOS policy")

    world.slurm.on_call = refuse
    told = [event.detail for _ in range(3) for _, event in world.look().events if isinstance(event, ev.Acted)]
    assert len(told) == 1
    assert "administrator" in told[0]
    assert world.state() == "REQUEUE_HOLD", "it may still be released"
    world.slurm.on_call = None
    world.look()
    assert world.state() == "CANCELLED"
    assert 1 in world.run.read_submissions()


def test_a_held_job_whose_run_may_not_go_on_is_cancelled(world: World) -> None:
    world.start()
    world.decide(Action.HOLD, RunState.HELD)
    world.slurm.hold_for_max_requeue(world.job)
    world.slurm.advance(20)
    world.look()
    assert world.state() == "CANCELLED"
    assert sorted(world.run.read_submissions()) == [0]
