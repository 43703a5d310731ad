"""How a job is left, and what the gate makes of an attempt whose agent died: against the Slurm in memory."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_support import Scene

from slurmtrain.agent import gate, stops
from slurmtrain.agent import leave as leave_module
from slurmtrain.agent.fence import Fence
from slurmtrain.agent.gate import Admitted, Settled, TurnedAway, pass_gate
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.leave import carry_out, leave_with
from slurmtrain.agent.leftovers import end_leftovers
from slurmtrain.agent.stops import StopWatch, look_patiently
from slurmtrain.agent.takeover import clear_the_way, number_of_next_launch
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.jobid import JobId
from slurmtrain.core.run import fold
from slurmtrain.errors import SlurmRefusedError, StoreError
from slurmtrain.ops import claim
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import FaultKind

REQUEUE = Decision(Action.REQUEUE, RunState.PENDING, "native_crash", "why", "program")
ENV = {"SLURM_JOB_ID": "999999999"}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(tmp_path)
    for module in (stops, leave_module):
        monkeypatch.setattr(module.time, "sleep", lambda seconds: made.slurm.advance(min(seconds, 0.1)))
    before = signal.getsignal(signal.SIGTERM)
    yield made
    signal.signal(signal.SIGTERM, before)


def test_an_outage_of_slurm_is_waited_for(scene: Scene) -> None:
    record = scene.claim()
    scene.slurm.inject(FaultKind.UNAVAILABLE, times=40)
    assert carry_out(scene.job, scene.attempt, REQUEUE, 7, scene.slurm, record) == 0
    assert scene.slurm.job(scene.job_id).restart_count == 1


def test_but_not_for_ever(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    record = scene.claim()
    monkeypatch.setattr(leave_module, "PATIENCE_S", 0.0)
    scene.slurm.inject(FaultKind.UNAVAILABLE, times=1000)
    assert carry_out(scene.job, scene.attempt, REQUEUE, 7, scene.slurm, record) == 7


def test_a_lost_reply_to_the_requeue_is_no_second_requeue(scene: Scene) -> None:
    record = scene.claim()
    scene.slurm.inject(FaultKind.REPLY_LOST, "requeue")
    assert carry_out(scene.job, scene.attempt, REQUEUE, 7, scene.slurm, record) == 0
    assert scene.calls("requeue") == ["requeue"]
    assert scene.slurm.job(scene.job_id).restart_count == 1


def test_a_cancelled_job_is_not_revived(scene: Scene) -> None:
    record = scene.claim()
    scene.slurm.cancel(scene.job_id)
    assert carry_out(scene.job, scene.attempt, REQUEUE, 7, scene.slurm, record) == 7
    assert scene.calls("requeue") == []


def test_an_unknown_job_is_not_waited_for(scene: Scene) -> None:
    scene.slurm.finish(scene.job_id, 0)
    scene.slurm.advance(100_000)
    assert look_patiently(scene.slurm, scene.job_id) is None


def test_a_decision_of_a_dead_agent_is_carried_out_by_the_next(scene: Scene) -> None:
    scene.claim()
    scene.attempt.publish_decision(decision_to_dict(REQUEUE))
    passed = pass_gate(scene.job, scene.slurm, scene.journal)
    assert isinstance(passed, Settled)
    assert passed.decision.action is Action.REQUEUE


def test_an_undecided_attempt_goes_on_behind_every_launch_that_was_begun(scene: Scene) -> None:
    record = scene.claim()
    record.launch_started(0, "logs/x", 0, None)
    scene.attempt.launch(1).mkdir(parents=True)  # begun, and not written down any more
    passed = pass_gate(scene.job, scene.slurm, scene.journal)
    assert isinstance(passed, Admitted)
    assert passed.recovered
    assert number_of_next_launch(record.read_run(), passed.attempt) == 2


def test_the_next_agent_notes_the_start_of_an_attempt_whose_first_died_at_its_claim(scene: Scene) -> None:
    claim_attempt(scene.run, scene.job.owner_record())
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), Admitted)
    started = fold(read_journal(scene.run.journal)).attempts[0].started
    assert started is not None
    assert started.job_id == str(scene.job_id)
    again = len(read_journal(scene.run.journal))
    pass_gate(scene.job, scene.slurm, scene.journal)
    assert len(read_journal(scene.run.journal)) == again


def test_nothing_is_started_in_an_execution_that_slurm_ended(scene: Scene) -> None:
    assert clear_the_way(scene.job, scene.slurm, ENV)
    scene.slurm.requeue(scene.job_id, only_running=True)
    assert not clear_the_way(scene.job, scene.slurm, ENV)


def test_a_predecessors_steps_on_all_nodes_are_ended_first(scene: Scene) -> None:
    scene.slurm.start_step(scene.job_id, "0")
    scene.slurm.start_step(scene.job_id, "1")
    assert end_leftovers(scene.job_id, ENV["SLURM_JOB_ID"], scene.slurm, keep={"0"})
    assert [step for step in scene.slurm.steps(scene.job_id) if step.isdigit()] == ["0"]
    assert [sent.target for sent in scene.slurm.signals if sent.name == "KILL"] == ["1"]


def test_without_an_answer_about_the_steps_nothing_is_clear(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurmtrain.agent.leftovers._BOUND_S", 0.5)
    scene.slurm.inject(FaultKind.UNAVAILABLE, "steps", times=10_000)
    assert not end_leftovers(scene.job_id, ENV["SLURM_JOB_ID"], scene.slurm)


def test_a_claim_that_makes_no_sense_keeps_nobody_out(scene: Scene) -> None:
    scene.run.submission(0).write_text('{"job')
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), Admitted)


def test_a_second_job_of_a_submission_is_turned_away(scene: Scene) -> None:
    scene.run.submission(0).write_text('{"job_id": "424242"}')
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), TurnedAway)


def test_a_persons_requeue_lets_the_run_go_on_whatever_its_budget(scene: Scene) -> None:
    """TERM of the requeue made the training fail: that is no failure of its own."""
    record = scene.claim()
    record.launch_started(0, "logs/x", 0, None)
    record.launch_ended(
        0, exit_code=1, duration_s=1, stop_reason="slurm", progress=None, done=False, rank_exits=[], log_end=0
    )
    again = _next_execution(scene)
    assert isinstance(pass_gate(again, scene.slurm, JournalWriter(scene.run.journal, "next")), Admitted)
    decision = scene.attempt.read_decision() or {}
    assert (decision["action"], decision["budget"]) == ("requeue", "none")


@pytest.mark.parametrize("reason", ["drain", "time_limit", "preempted"])
def test_a_training_that_was_asked_to_leave_and_requeued_itself_left_for_what_it_was_asked_for(
    scene: Scene, reason: str
) -> None:
    """Lightning and submitit call ``scontrol requeue`` on their signal: the same ending, not another one."""
    record = scene.claim()
    record.launch_started(0, "logs/x", 0, None)
    record.stop_sent(0, reason, None, "")
    record.launch_ended(
        0, exit_code=137, duration_s=1, stop_reason=reason, progress=None, done=False, rank_exits=[], log_end=0
    )
    again = _next_execution(scene)
    assert isinstance(pass_gate(again, scene.slurm, JournalWriter(scene.run.journal, "next")), Admitted)
    decision = scene.attempt.read_decision() or {}
    assert (decision["action"], decision["cause"], decision["budget"]) == ("requeue", reason, "none")
    assert f"asked to save and leave ({reason}), the training requeued the job itself" in decision["reason"]


def test_a_program_that_had_failed_for_good_is_kept_out(scene: Scene) -> None:
    record = scene.claim()
    scene.run.log_file(str(scene.job_id)).write_text("0: ModuleNotFoundError: No module named 'x'\n")
    record.launch_started(0, f"logs/train-{scene.job_id}.log", 0, None)
    record.launch_ended(
        0, exit_code=1, duration_s=1, stop_reason=None, progress=None, done=False, rank_exits=[], log_end=50
    )
    again = _next_execution(scene)
    passed = pass_gate(again, scene.slurm, JournalWriter(scene.run.journal, "next"))
    assert isinstance(passed, TurnedAway)
    assert fold(read_journal(scene.run.journal)).state is RunState.FAILED


def test_the_end_is_asked_for_again_before_it_is_acted_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator extended the limit, or the job was suspended: the end known from the start is not the end."""
    watch = StopWatch(scene.job, scene.slurm)
    record = scene.slurm.observe([scene.job_id]).jobs[scene.job_id]
    assert record.end_time is not None
    late = record.end_time.timestamp() - 10
    monkeypatch.setattr(stops.time, "time", lambda: late)
    assert watch.check() is not None, "nobody moved it"
    watch = StopWatch(scene.job, scene.slurm)
    monkeypatch.setattr(watch, "_end_time", record.end_time.timestamp() - 3600)  # what was known once
    monkeypatch.setattr(watch, "_refresh_at", 0.0)
    monkeypatch.setattr(stops.time, "time", lambda: record.end_time.timestamp() - 3600 - 10)  # type: ignore[union-attr]
    assert watch.check() is None


def test_a_signal_that_slurm_did_not_explain_is_not_forgotten(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    start = scene.slurm.observe([scene.job_id]).jobs[scene.job_id].start_time
    monkeypatch.setattr(stops.time, "time", lambda: start.timestamp() if start else 0.0)
    watch = StopWatch(scene.job, scene.slurm)
    watch.on_signal(signal.SIGUSR2)
    scene.slurm.inject(FaultKind.UNAVAILABLE, "observe")
    assert watch.check() is None
    assert watch.signalled


@pytest.mark.parametrize(("action", "code"), [(Action.STOP, 1), (Action.REQUEUE, 1), (Action.COMPLETE, 0)])
def test_a_training_that_left_on_request_is_no_success_where_nobody_can_write_that_down(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, action: Action, code: int
) -> None:
    """The watcher takes a script's exit code 0 for success where nothing tells it otherwise."""
    record = scene.claim()

    def full(*_args: object) -> bool:
        raise StoreError("No space left on device")

    monkeypatch.setattr("slurmtrain.agent.leave.publish_decision", full)
    decision = Decision(action, RunState.STOPPED, "user_cancelled", "a person asked the run to stop")
    assert leave_with(scene.job, scene.attempt, decision, 0, 0, scene.slurm, record) == code
    assert scene.calls("requeue") == []


def test_a_later_attempt_closes_the_fence(scene: Scene) -> None:
    scene.claim()
    fence = Fence(scene.run, scene.attempt.number, 0.0)
    assert not fence.closed
    claim_attempt(scene.run, {"job_id": "8", "restart_count": 0})
    assert fence.closed


def test_an_execution_that_slurm_began_earlier_does_not(scene: Scene) -> None:
    """A lost node's agent that stood still at its gate claims after its successor."""
    late, again = scene.job, _next_execution(scene)
    attempt = claim_attempt(scene.run, again.owner_record())
    fence = Fence(scene.run, attempt.number, 0.0)
    claim_attempt(scene.run, late.owner_record())
    assert not fence.closed
    claim_attempt(scene.run, {**again.owner_record(), "restart_count": 2})
    assert fence.closed


def test_the_gate_turns_it_away_and_its_successor_is_not_decided_about(scene: Scene) -> None:
    again = _next_execution(scene)
    attempt = claim_attempt(scene.run, again.owner_record())
    scene.slurm.inject(FaultKind.UNAVAILABLE, "observe", times=9)
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), TurnedAway)
    assert attempt.read_decision() is None
    assert len(scene.run.read_attempts()) == 1


def _next_execution(scene: Scene) -> JobContext:
    scene.slurm.requeue(scene.job_id, only_running=True)
    scene.slurm.advance(300)
    return dataclasses.replace(scene.job, restart_count=1, batch_pid=2)


def test_a_site_that_lets_nobody_move_the_start_costs_slurms_delay_and_nothing_else(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = scene.claim()
    update = scene.slurm.update_pending

    def forbid(job_id: JobId, *, exclude: str | None = None, **start: object) -> None:
        if any(value is not None for value in start.values()):
            raise SlurmRefusedError("cannot change pending job: Access/permission denied")
        update(job_id, exclude=exclude)

    monkeypatch.setattr(scene.slurm, "update_pending", forbid)
    decision = dataclasses.replace(REQUEUE, exclude=("n1",))
    assert carry_out(scene.job, scene.attempt, decision, 7, scene.slurm, record) == 0
    assert scene.slurm.job(scene.job_id).restart_count == 1
    assert scene.slurm.excluded_nodes(scene.job_id) == "n1", "the one may be forbidden and the other not"
    (acted,) = fold(read_journal(scene.run.journal)).attempts[0].acted
    assert acted.accepted
    assert "when Slurm's delay is over" in acted.detail
    scene.slurm.advance(130)
    assert str(scene.slurm.observe([scene.job_id]).jobs[scene.job_id].state) == "RUNNING"


@pytest.mark.parametrize("at", ["publish_directory", "find_claimed"])
def test_an_attempt_that_is_seen_only_at_the_claim_is_decided_about_too(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """A network file system shows what another host made late: to a claim that meets it, or just before that."""
    scene.claim()
    again = _next_execution(scene)
    real, read, met = getattr(claim, at), RunDir.read_attempts, []

    def meet(*args: Any) -> Any:
        answer = real(*args)
        met.append(answer)
        return answer

    monkeypatch.setattr(claim, at, meet)
    monkeypatch.setattr(RunDir, "read_attempts", lambda run: read(run) if met else [])
    monkeypatch.setattr(gate, "_PAUSE_S", 0.0)
    passed = pass_gate(again, scene.slurm, JournalWriter(scene.run.journal, "next"))
    assert isinstance(passed, Admitted)
    assert passed.attempt.number == 1
    assert (scene.attempt.read_decision() or {})["action"] == "requeue"
