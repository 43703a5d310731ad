"""The gate: what happens before any GPU work.

An attempt is let in once. A job that came back although the run has ended, a second job of one submission, and a run
that a person stopped leave with exit code 0. Where Slurm requeued by itself (preemption, node failure), nobody decided
about the attempt before: the gate does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import look
from slurmtrain.core.decision import Action, Decision, RunState, decision_from_dict
from slurmtrain.core.events import AttemptStarted, Event
from slurmtrain.core.jobid import parse_job_id
from slurmtrain.core.ownership import Owner, find_rule
from slurmtrain.core.run import Run, find_attempt, fold
from slurmtrain.errors import StoreError
from slurmtrain.ops.claim import claim_attempt, find_successor
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.ops.requeued import judge_requeued_attempt, settle_earlier
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.publish import publish_once, read_json, to_json
from slurmtrain.store.rundir import AttemptDir, RunDir

_CLAIM_PATIENCE_S = 90.0
_TRIES, _PAUSE_S = 4, 3.0
_OVERTAKEN = "a later execution of the run has begun already: this one is superfluous and ends itself"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The attempt may train. ``recovered`` says that an agent of this very batch script had begun it and died."""

    attempt: AttemptDir
    recovered: bool


@dataclass(frozen=True, slots=True)
class Settled:
    """An agent of this very batch script decided, and died before it had carried the decision out."""

    attempt: AttemptDir
    decision: Decision


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """Nothing to do here; the reason is a sentence for the job's log."""

    reason: str
    exit_code: int = 0


def pass_gate(job: JobContext, slurm: SlurmClient, journal: JournalWriter) -> Admitted | Settled | TurnedAway:
    """Raises ``StoreError`` or ``OSError`` where the claim cannot be written: then nobody decides inside this job.

    A passing fault (a stale handle, a server that restarts) is waited for: an attempt without a record is worth less.
    """
    for _ in range(_TRIES - 1):
        try:
            return _pass(job, slurm, journal)
        except (StoreError, OSError) as exc:
            say(f"{exc}; trying again")
            time.sleep(_PAUSE_S)
    return _pass(job, slurm, journal)


def _pass(job: JobContext, slurm: SlurmClient, journal: JournalWriter) -> Admitted | Settled | TurnedAway:
    if job.run.is_over(job.plan.spec):
        return TurnedAway("the run has finished; Slurm started it again, which is not needed")
    taken = _claim_submission(job)
    if taken is not None:
        return TurnedAway(taken)
    mine = _find_mine(job)
    if mine is not None:
        return _recover(mine, job, journal)
    known = {attempt.number for attempt in job.run.read_attempts()}
    if find_successor(job.run, job.owner_record()) is not None:
        return TurnedAway(_OVERTAKEN)
    refused = _settle_previous(job, slurm, journal)
    if refused is not None:
        return TurnedAway(refused)
    attempt = claim_attempt(job.run, job.owner_record(), _CLAIM_PATIENCE_S, known)
    if not _is_mine(attempt, job):
        return TurnedAway("this execution was decided about from outside: Slurm said that it was over")
    if find_successor(job.run, job.owner_record()) is not None:  # it claimed in this very moment
        # Not into the journal: this attempt has a later number, and the run is where its successor says.
        publish_decision(attempt, judge_requeued_attempt(job.run, job.plan.spec, attempt, slurm).decision, "gate")
        return TurnedAway(_OVERTAKEN)
    _note(journal, _started(attempt, job))
    if job.find_stop_request() is not None:
        return _stop_before_launch(job, attempt, journal)
    return Admitted(attempt, recovered=False)


def _started(attempt: AttemptDir, job: JobContext) -> AttemptStarted:
    return AttemptStarted(
        at=time.time(),
        who="gate",
        attempt=attempt.number,
        job_id=str(job.job_id),
        restart_count=job.restart_count,
        host=job.host,
        nodes=job.nodes,
    )


def _note(journal: JournalWriter, *events: Event) -> None:
    """Into the journal; the claim and the decision are published already, so a full disk stops nobody any more."""
    try:
        journal.append(*events, sync=True)
    except StoreError as exc:
        say(str(exc))


def _claim_submission(job: JobContext) -> str | None:
    """The first job of a submission owns it: a submission whose reply was lost may have made two.

    A sentence where it belongs to another job, or to none any more (``ops.unsubmitted``).
    """
    path = job.run.submission(job.submission)
    record = {"job_id": str(job.job_id), "claimed_by": "gate", "at": time.time()}
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if publish_once(path, to_json(record)):
        return None
    owner = read_json(path)
    if owner is None or str(owner.get("job_id", "")) == str(job.job_id):
        return None  # an unreadable claim is nobody's
    if not owner.get("job_id"):
        return (
            f"the run was ended, because no job of it was to be seen; `slurmtrain restart {job.run.run_id}` starts it"
        )
    return "another job of this submission trains already: this one is superfluous and ends itself"


def _find_mine(job: JobContext) -> AttemptDir | None:
    return next((attempt for attempt in reversed(job.run.read_attempts()) if _is_mine(attempt, job)), None)


def _is_mine(attempt: AttemptDir, job: JobContext) -> bool:
    owner = attempt.read_owner() or {}
    return all(owner.get(key) == value for key, value in job.owner_record().items())


def _recover(attempt: AttemptDir, job: JobContext, journal: JournalWriter) -> Admitted | Settled | TurnedAway:
    record = attempt.read_decision()
    if record is None:
        state = _read_state(job.run)
        known = find_attempt(state, attempt.number) if state is not None else None
        if known is None or known.started is None:  # the agent before died between its claim and the journal
            _note(journal, _started(attempt, job))
        return Admitted(attempt, recovered=True)
    try:
        return Settled(attempt, decision_from_dict(record))
    except ValueError:
        return TurnedAway("this attempt was decided in words that make no sense here", exit_code=1)


def _settle_previous(job: JobContext, slurm: SlurmClient, journal: JournalWriter) -> str | None:
    """See that the attempts before are decided; a sentence where the last decision keeps this attempt out."""
    before = [attempt for attempt in job.run.read_attempts() if not _is_of(attempt, job)]
    if not before:
        return None
    if before[-1].read_decision() is None and (refused := _lives_in_another_job(job, before[-1], slurm)):
        return refused
    _note(journal, *settle_earlier(job.run, job.plan.spec, before[-1].number + 1, slurm, Owner.GATE.value))
    return _keeps_out(before[-1], job)


def _is_of(attempt: AttemptDir, job: JobContext) -> bool:
    """Whether somebody claimed this very execution: a watcher does when Slurm said that it was over."""
    owner = attempt.read_owner() or {}
    return owner.get("job_id") == str(job.job_id) and owner.get("restart_count") == job.restart_count


def _lives_in_another_job(job: JobContext, previous: AttemptDir, slurm: SlurmClient) -> str | None:
    """A sentence where the attempt before is another job's and that job's agent decides: it was submitted by hand."""
    try:
        before = parse_job_id(str((previous.read_owner() or {}).get("job_id")))
    except ValueError:
        return None
    seen = look(slurm, before) if before != job.job_id else None
    if seen is None:
        return None  # an earlier execution of this very job, or a job that Slurm has forgotten
    rule = find_rule(seen.state, requeue=seen.requeue)
    if rule.owner is Owner.AGENT or rule.passes:
        return f"job {before} of the same run is {seen.state}: this one is superfluous and ends itself"
    return None


def _keeps_out(before: AttemptDir, job: JobContext) -> str | None:
    run = job.run
    try:
        decision = decision_from_dict(before.read_decision() or {})
    except ValueError:
        return None  # written by a later version: an attempt that trains is better than one that guesses
    if decision.action in {Action.REQUEUE, Action.RESTART_IN_PLACE}:
        return None
    if decision.action is Action.HOLD and _is_released(before, job):
        return None
    words = {
        Action.HOLD: "the run is held",
        Action.COMPLETE: "the run has finished",
        Action.STOP: "the run was stopped",
    }
    what = words.get(decision.action, "the run was left")
    return f"{what} ({decision.reason}); `slurmtrain restart {run.run_id}` starts it anew"


def _is_released(held: AttemptDir, job: JobContext) -> bool:
    """Only `release` submits a new job of a held run; the journal, which may be seen late, says it for the same job."""
    if str((held.read_owner() or {}).get("job_id")) != str(job.job_id):
        return True
    state = _read_state(job.run)
    return state is not None and state.state is not RunState.HELD


def _read_state(run: RunDir) -> Run | None:
    try:
        return fold(read_journal(run.journal))
    except StoreError as exc:
        say(str(exc))
        return None


def _stop_before_launch(job: JobContext, attempt: AttemptDir, journal: JournalWriter) -> TurnedAway:
    decision = Decision(Action.STOP, RunState.STOPPED, "user_cancelled", "a person asked the run to stop")
    if publish_decision(attempt, decision, "gate"):
        Record(journal, job.run.journal, attempt.number).stop_noticed(job)
        _note(journal, build_decided(attempt.number, decision, "gate"))
    return TurnedAway("a person asked the run to stop")
