"""Looking after one run from outside: what the watcher does with what it saw.

It decides only about executions whose script is dead (the job has ended, or Slurm no longer knows it), and carries out
what was decided but never confirmed. Everything it finds goes to the journal.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce

from slurmtrain.core.decision import ENDED_STATES, RETRIES, Action, Decision, RunState, decision_from_dict
from slurmtrain.core.events import Acted, AttemptEnded, AttemptStarted, Event, JobSeen
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import BaseState, is_waiting
from slurmtrain.core.ownership import Owner, find_rule, may_decide
from slurmtrain.core.run import Run, advance, find_attempt
from slurmtrain.core.waiting import is_held_for_good
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.act import requeue_from_outside, start_soon
from slurmtrain.ops.breaker import probe_is_well, with_breaker
from slurmtrain.ops.claim import came_before, claim_attempt, find_claimed
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.ops.ended import Execution, find_execution_end
from slurmtrain.ops.fallback import fallback_of
from slurmtrain.ops.held import cancel_replaced, replace_held
from slurmtrain.ops.observe import Observation, build_job_seen
from slurmtrain.ops.outside_scene import begin_outside
from slurmtrain.ops.release import finish_release
from slurmtrain.ops.requeued import judge_ended_attempt, settle_earlier
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import AttemptDir, Plan, RunDir

_START_SLACK = timedelta(seconds=2)
_MANY = 1 << 30  # behind all attempts
_SOON, _MISSED = timedelta(seconds=4), timedelta(seconds=3)


@dataclass(frozen=True, slots=True)
class Care:
    """Everything one look at one run needs. ``observe_only`` writes down what is seen and does nothing else."""

    run: RunDir
    plan: Plan
    state: Run
    job_id: JobId
    observation: Observation
    slurm: SlurmClient
    journal: JournalWriter
    observe_only: bool = False

    @property
    def record(self) -> JobRecord | None:
        return self.observation.jobs.get(self.job_id)

    @property
    def last_attempt_number(self) -> int:
        """-1 before the first."""
        return self.state.attempts[-1].number if self.state.attempts else -1


def find_job(run: RunDir, state: Run) -> JobId | None:
    """The run's newest job: of the newest submission, or of an attempt whose submission's record is missing.

    Where the store could not be written all the while, only the log that Slurm made for the job has its name.
    """
    submissions = run.read_submissions()
    text = submissions[max(submissions)] if submissions else state.job_id or run.find_logged_job()
    try:
        return parse_job_id(text)
    except ValueError:
        return None


def look_after(care: Care) -> list[Event]:
    """Observe, decide, act; the events that were written. Raises ``SlurmUnavailableError`` and ``StoreError``."""
    written: list[Event] = []
    seen = _job_seen(care)
    if seen is not None:
        care.journal.append(seen)
        written.append(seen)
    if len(care.state.submissions) > 1 and not care.observe_only:
        cancel_replaced(care.state, care.job_id, care.observation.jobs, care.slurm)
    record = care.record
    if record is not None and not may_decide(Owner.WATCHER, record.state, requeue=record.requeue):
        return written + _look_after_living(care, record)
    observation = care.observation
    if observation.needs_preempt_mode(care.job_id):
        observation = replace(observation, preempt_mode=care.slurm.capabilities().preempt_mode)
    execution = find_execution_end(care.run, care.state, care.job_id, observation)
    return written + (_look_after_ended(care, execution) if execution is not None else [])


def _job_seen(care: Care) -> JobSeen | None:
    """An event when Slurm's word changed since the last one."""
    record = care.record
    if record is None:
        return None
    seen = build_job_seen(record, at=time.time(), who="watcher", attempt=care.last_attempt_number)
    before = care.state.job
    if before is not None and replace(before, at=seen.at, who=seen.who, attempt=seen.attempt) == seen:
        return None
    return seen


# --- jobs that Slurm still has in its hands


def _look_after_living(care: Care, record: JobRecord) -> list[Event]:
    if not is_waiting(record.state) or care.observe_only:
        return []
    if care.run.is_over(care.plan.spec) or (care.state.ended and record.restart_count > 0):
        return _cancel_needless(care)
    if is_held_for_good(record.reason):
        return replace_held(care.run, care.plan, care.state, record, care.slurm, care.journal)
    if _waits_for_slurms_delay(care, record):
        return _start_now(care, record)
    return []


def _cancel_needless(care: Care) -> list[Event]:
    """Slurm queued a run again that has ended: from 24.05 on it does so once after a graced preemption."""
    care.slurm.cancel(care.job_id)
    event = Acted(
        at=time.time(), who="watcher", action="cancel", accepted=True, detail="the run has ended; its job waited again"
    )
    care.journal.append(event)
    return [event]


def _waits_for_slurms_delay(care: Care, record: JobRecord) -> bool:
    """Slurm's two minutes are over for us once our own delay has passed; or the job's start time has come, and
    slurmctld has not looked since (it shows the old reason until then)."""
    if record.restart_count == 0 or record.reason != "BeginTime" or record.begin_time is None:
        return False
    now = care.observation.taken_at
    left = record.begin_time - now
    if -_MISSED < left < _SOON:
        return False  # it is about to start by itself
    waits = care.state.last_decision is not None and care.state.last_decision.waits_for
    if not waits and left > care.slurm.capabilities().requeue_delay + _START_SLACK:
        return False  # somebody else wants it later than Slurm does
    last = care.state.last_attempt
    wanted = last.decision.delay_s if last and last.decision else 0
    if last and last.decision and last.decision.waits_for:
        store = care.run.path.parent.parent
        return probe_is_well(store, last.decision, time.time()) or now - (record.submit_time or now) >= timedelta(
            seconds=wanted
        )
    return now - (record.submit_time or now) >= timedelta(seconds=wanted)


def _start_now(care: Care, record: JobRecord) -> list[Event]:
    try:
        start_soon(
            care.slurm, record.job_id, care.observation.taken_at, record.submit_time
        )  # the submission is set anew when the clean-up ends
    except SlurmtrainError as exc:
        accepted, detail = False, f"the start cannot be moved forward: {exc}"
    else:
        accepted, detail = True, "its start is moved to this moment: Slurm would have let it wait"
    event = Acted(
        at=time.time(),
        who="watcher",
        attempt=care.last_attempt_number,
        action="start_now",
        accepted=accepted,
        detail=detail,
    )
    care.journal.append(event)
    return [event]


# --- executions that are over


def _look_after_ended(care: Care, execution: Execution) -> list[Event]:
    attempt = find_claimed(care.run, str(care.job_id), execution.restart_count)
    if attempt is not None and (decided := attempt.read_decision()) is not None:
        return _finish(care, attempt, execution, decided)
    if care.observe_only or (attempt is None and care.state.ended):
        return []
    known = {one.number for one in care.run.read_attempts()}
    before = attempt.number if attempt is not None else _MANY
    earlier = settle_earlier(care.run, care.plan.spec, before, care.slurm, "watcher")
    care.journal.append(*earlier)
    care = replace(care, state=reduce(advance, earlier, care.state))
    if attempt is None:
        if (over := _find_end_before(care)) is not None:
            return [*earlier, *over]
        attempt = _claim_for_dead(care, execution, known)
    written = _note_start(care, attempt, execution)
    care = replace(care, state=reduce(advance, written, care.state))
    return [*earlier, *written, *_decide(care, attempt, execution)]


def _find_end_before(care: Care) -> list[Event] | None:
    """Where the attempt before was the last, the gate has turned this execution away: it is no attempt.

    The journal may not tell so yet; the decision beside the attempt does, which somebody had published on another host.
    None where the run goes on.
    """
    attempts = care.run.read_attempts()
    last = attempts[-1] if attempts else None
    record = last.read_decision() if last is not None else None
    try:
        decision = decision_from_dict(record or {})
    except ValueError:
        return None
    if last is None or record is None or decision.action in RETRIES:
        return None
    if decision.action is Action.HOLD and str((last.read_owner() or {}).get("job_id")) != str(care.job_id):
        return None  # only a release submits another job of a held run
    known = find_attempt(care.state, last.number)
    if known is not None and known.decision is not None:
        return []
    decided = build_decided(last.number, decision, str(record.get("decided_by", "gate")))
    care.journal.append(decided, sync=True)
    return [decided]


def _claim_for_dead(care: Care, execution: Execution, known: set[int]) -> AttemptDir:
    """An execution whose gate was never passed still is an attempt: cancelled in the queue, or no agent could start."""
    return claim_attempt(
        care.run,
        {"job_id": str(care.job_id), "restart_count": execution.restart_count, "host": "", "claimed_by": "watcher"},
        known=known,
    )


def _note_start(care: Care, attempt: AttemptDir, execution: Execution) -> list[Event]:
    """An attempt that no gate has written down, or that a watcher claimed before it died."""
    known = find_attempt(care.state, attempt.number)
    if known is not None and known.started is not None:
        return []
    started = AttemptStarted(
        at=time.time(),
        who="watcher",
        attempt=attempt.number,
        job_id=str(care.job_id),
        restart_count=execution.restart_count,
        host="",
        nodes=execution.nodes,
    )
    care.journal.append(started)
    return [started]


def _decide(care: Care, attempt: AttemptDir, execution: Execution) -> list[Event]:
    begin_outside(care.run, care.plan.spec, attempt, str(care.job_id), execution.nodes)
    decision, events = _judge(care, attempt, execution)
    if not publish_decision(attempt, decision, "watcher"):
        return _finish(care, attempt, execution, attempt.read_decision() or {})
    decided = build_decided(attempt.number, decision, "watcher")
    care.journal.append(*events, decided, sync=True)
    return [*events, decided, *_carry_out(care, attempt, decision)]


def _judge(care: Care, attempt: AttemptDir, execution: Execution) -> tuple[Decision, tuple[Event, ...]]:
    if find_rule(execution.state).final:
        return _cancelled(care, attempt, execution)
    if execution.state.base is BaseState.DEADLINE:
        reason = "Slurm gave the job up: it could not end before its deadline"
        return Decision(Action.STOP, RunState.FAILED, "slurm_request_invalid", reason), ()
    word, code = execution.state.word, execution.exit_code
    if _trained_nothing(care, attempt, execution):
        word, code = "UNKNOWN", None
    judged = judge_ended_attempt(care.run, care.plan.spec, attempt, execution.row, care.state, word, code)
    return with_breaker(care.run, care.plan.spec, judged.decision, time.time()), judged.events


def _trained_nothing(care: Care, attempt: AttemptDir, execution: Execution) -> bool:
    """A script that ended well is no success of the training where nothing shows that it trained.

    A gate that turns a job away ends it with exit code 0.
    """
    known = find_attempt(care.state, attempt.number)
    if execution.state.base is not BaseState.COMPLETED or (known and known.launches):
        return False
    if care.run.is_done() or fallback_of(care.run, attempt) is not None:
        return False
    steps = execution.row.steps if execution.row is not None else ()
    return not any(step.name.isdigit() and step.state.base is BaseState.COMPLETED for step in steps)


def _cancelled(care: Care, attempt: AttemptDir, execution: Execution) -> tuple[Decision, tuple[Event, ...]]:
    """A cancelled job stays cancelled. By whom, where accounting says it."""
    by = execution.cancelled_by
    owner = care.plan.data.get("uid")
    forced = by is not None and owner is not None and by != owner
    who = "somebody" if by is None else "its owner" if not forced else f"uid {by}"
    ended = AttemptEnded(
        at=time.time(),
        who="watcher",
        attempt=attempt.number,
        job_id=str(care.job_id),
        state="CANCELLED",
        exit_code=execution.exit_code,
        cancelled_by=by,
    )
    state = RunState.TERMINATED if forced else RunState.STOPPED
    return Decision(Action.LEAVE, state, "user_cancelled", f"the job was cancelled by {who}"), (ended,)


def _finish(care: Care, attempt: AttemptDir, execution: Execution, record: dict[str, object]) -> list[Event]:
    """A decision exists: see that the journal has it and that it was carried out."""
    try:
        decision = decision_from_dict(record)
    except ValueError:
        return []
    known = find_attempt(care.state, attempt.number)
    written: list[Event] = []
    lost = decision.state in ENDED_STATES and not care.state.ended  # in the journal, but sorted before what it ended
    if known is None or known.decision is None or lost:
        decided = build_decided(attempt.number, decision, str(record.get("decided_by", "agent")))
        care.journal.append(decided)
        written.append(decided)
    if care.observe_only:
        return written
    if decision.action is Action.HOLD:
        return written + finish_release(care.run, care.state, attempt.number, care.job_id, care.slurm, care.journal)
    if decision.action is not Action.REQUEUE:
        return written
    if find_rule(execution.state).final:
        return written + _cancelled_after_decision(care, attempt, execution)
    return written + _carry_out(care, attempt, decision)


def _cancelled_after_decision(care: Care, attempt: AttemptDir, execution: Execution) -> list[Event]:
    """The retry was decided, then a person cancelled the job before it came to it: the run is stopped."""
    if care.state.ended:
        return []
    decision, events = _cancelled(care, attempt, execution)
    decided = build_decided(attempt.number, decision, "watcher")
    care.journal.append(*events, decided, sync=True)
    return [*events, decided]


def _carry_out(care: Care, attempt: AttemptDir, decision: Decision) -> list[Event]:
    if decision.action is not Action.REQUEUE:
        return []
    owner = attempt.read_owner() or {}
    later = [other for other in care.run.read_attempts() if other.number > attempt.number]
    if any(not came_before(other.read_owner() or {}, owner) for other in later):
        return []  # a later execution exists: it was carried out
    return [requeue_from_outside(care.run, attempt, care.job_id, decision, care.slurm, care.journal)]
