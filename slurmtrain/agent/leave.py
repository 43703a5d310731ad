"""Leaving the job: the decision is published, then carried out, then confirmed.

The fast requeue (tried on 22.05, 24.11 and 26.05, see docs/slurm.md): ignore TERM, ``scontrol requeue Incomplete``,
and while the job is COMPLETING move its start time from Slurm's two minutes to a few seconds and exclude nodes.
slurmctld itself refuses a job that is not running any more, so a cancelled job stays cancelled.
"""

from __future__ import annotations

import contextlib
import signal
import time
from datetime import timedelta

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import look
from slurmtrain.core.decision import Action, Decision, decision_to_dict
from slurmtrain.core.events import Acted, Decided
from slurmtrain.core.jobstate import is_running
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.ops.exclude import join_excluded
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.inbox import drop
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import AttemptDir

CLEAN_UP = timedelta(seconds=8)  # how long Slurm may take to clean up before the job may start again
_UPDATE_TRIES = 5
_CONFIRM_TRIES = 10


def publish(job: JobContext, attempt: AttemptDir, decision: Decision, launch: int, journal: JournalWriter) -> bool:
    """Write the decision, once. False where somebody else had decided, or where it cannot be written: do not act."""
    record = {**decision_to_dict(decision), "decided_by": "agent", "launch": launch, "at": time.time()}
    try:
        first = attempt.publish_decision(record)
    except StoreError as exc:
        say(f"the decision cannot be written ({exc}); the watcher will decide")
        return False
    if not first:
        say("this attempt was decided by somebody else; nothing is done here")
        return False
    event = Decided(
        at=time.time(), who="agent", attempt=attempt.number, launch=launch, decision=decision_to_dict(decision)
    )
    with contextlib.suppress(StoreError):
        journal.append(event, sync=True)
    drop(job.run, f"{attempt.number}-decided")
    return True


def carry_out(
    job: JobContext, attempt: AttemptDir, decision: Decision, slurm: SlurmClient, journal: JournalWriter
) -> bool:
    """Do what was decided; True when Slurm took it. What failed is left to the watcher."""
    if decision.action is not Action.REQUEUE:
        return True
    accepted, detail = _requeue(job, decision, slurm)
    say(detail)
    with contextlib.suppress(StoreError):
        journal.append(
            Acted(
                at=time.time(), who="agent", attempt=attempt.number, action="requeue", accepted=accepted, detail=detail
            ),
            sync=True,
        )
    return accepted


def _requeue(job: JobContext, decision: Decision, slurm: SlurmClient) -> tuple[bool, str]:
    record = look(slurm, job.job_id)
    if record is None or not is_running(record.state):
        state = "unknown" if record is None else str(record.state)
        return False, f"not requeued: Slurm says {state}, so it is not ours to decide here"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the requeue sends TERM; children inherit that it is ignored
    try:
        slurm.requeue(job.job_id, only_running=True)
    except SlurmtrainError as exc:
        return False, f"not requeued: {exc}"
    if not _requeue_happened(job, slurm):
        return False, "not requeued: the job had ended or was cancelled in the same moment"
    delay = CLEAN_UP + timedelta(seconds=decision.delay_s)
    exclude = join_excluded(slurm, record, decision.exclude)
    updated = _move_start(job, slurm, delay, exclude)
    words = f" without {exclude}" if exclude else ""
    when = f"starts again in {delay.total_seconds():.0f} s" if updated else "starts again when Slurm's delay is over"
    return True, f"requeued{words}, {when}"


def _requeue_happened(job: JobContext, slurm: SlurmClient) -> bool:
    for _ in range(_CONFIRM_TRIES):
        record = look(slurm, job.job_id)
        if record is not None:
            return record.restart_count > job.restart_count
        time.sleep(0.3)
    return True  # nobody answers: assume it was taken, an update of a job that was not is refused


def _move_start(job: JobContext, slurm: SlurmClient, delay: timedelta, exclude: str | None) -> bool:
    for _ in range(_UPDATE_TRIES):
        try:
            slurm.update_pending(job.job_id, start_after=delay, exclude=exclude)
        except SlurmtrainError:
            time.sleep(0.3)
        else:
            return True
    return False
