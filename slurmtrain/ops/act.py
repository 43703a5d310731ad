"""Carrying out a decision from outside the job: look, act, say what came of it. Repeating it is harmless."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta

from slurmtrain.core.decision import Decision
from slurmtrain.core.events import Acted
from slurmtrain.core.jobid import JobId
from slurmtrain.core.ownership import Owner, find_rule, may_decide
from slurmtrain.core.run import Run, fold
from slurmtrain.errors import SlurmRefusedError, SlurmtrainError
from slurmtrain.ops.exclude import exclude_for_new_job, join_excluded
from slurmtrain.ops.rescue import arm_rescue
from slurmtrain.ops.resubmit import resubmit
from slurmtrain.slurm.client import JobRecord, SlurmClient, Snapshot
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import AttemptDir, RunDir

REST = timedelta(seconds=3)  # slurmd refuses a job in the second of its end, and times are whole seconds
_FRESH_S, _LOOKS = 5.0, 3


def requeue_from_outside(
    run: RunDir, attempt: AttemptDir, job_id: JobId, decision: Decision, slurm: SlurmClient, journal: JournalWriter
) -> Acted:
    """Requeue an ended job, or submit a new one where Slurm no longer knows it.

    Raises ``SlurmUnavailableError``: nothing is known then, and the next look decides again.
    """
    owner = attempt.read_owner() or {}  # before the look: a store may hang
    seen = _look(slurm, job_id)
    record = seen.jobs.get(job_id)
    if record is None or not _may_requeue(record, owner):
        accepted, detail = _resubmit_unless_alive(run, attempt, record, decision, slurm, journal)
    else:
        accepted, detail = _requeue(run, attempt, record, seen.taken_at, decision, slurm, journal)
    event = Acted(
        at=time.time(), who="watcher", attempt=attempt.number, action="requeue", accepted=accepted, detail=detail
    )
    journal.append(event, sync=True)
    return event


def _look(slurm: SlurmClient, job_id: JobId) -> Snapshot:
    """The job as Slurm has it at this moment. Slurm takes no conditions with a requeue, so what follows must be fresh.

    A process that was stopped meanwhile (SIGSTOP, a suspended laptop, a hanging file server) looks again. What remains
    is the moment until Slurm has the command; a running execution that it hits goes on through the gate.
    """
    for left in reversed(range(_LOOKS)):
        asked = time.monotonic()
        seen = slurm.observe([job_id])
        if not left or time.monotonic() - asked <= _FRESH_S:
            break
    return seen


def _may_requeue(record: JobRecord, owner: Mapping[str, object]) -> bool:
    """Only the execution that was decided about, and never one that somebody cancelled."""
    return (
        may_decide(Owner.WATCHER, record.state)
        and not find_rule(record.state).final
        and record.restart_count == owner.get("restart_count")
        and record.requeue
    )


def _requeue(
    run: RunDir,
    attempt: AttemptDir,
    record: JobRecord,
    now: datetime,
    decision: Decision,
    slurm: SlurmClient,
    journal: JournalWriter,
) -> tuple[bool, str]:
    try:
        slurm.requeue(record.job_id, only_running=False)
    except SlurmRefusedError as exc:
        return _new_job(run, attempt, decision, f"Slurm does not requeue job {record.job_id} ({exc})", slurm, journal)
    exclude = join_excluded(slurm, record, run.read_plan().spec, _read_state(run), time.time(), decision)
    said = f"requeued job {record.job_id}"
    try:
        start_soon(slurm, record.job_id, now, record.end_time, timedelta(seconds=decision.delay_s), exclude)
    except SlurmtrainError as exc:
        said += f"; Slurm's own delay applies ({exc})"
    else:
        said += f" without {exclude}" if exclude else ""
    problem = arm_rescue(run, run.read_plan().spec, record.job_id, slurm)
    return True, f"{said}; {problem}" if problem else said


def start_soon(
    slurm: SlurmClient,
    job_id: JobId,
    now: datetime,
    ended_at: datetime | None,
    delay: timedelta = timedelta(0),
    exclude: str | None = None,
) -> None:
    """Let a job that waits in the queue start ``delay`` from now on, at once for 0.

    slurmctld looks for nodes within a second of an update and not again when the start time comes: so it is the
    present moment, except where the execution before ended (``ended_at``) too short a time ago.
    """
    if delay > timedelta(0):
        slurm.update_pending(job_id, start_after=delay, exclude=exclude)
        return
    rest = ended_at + REST - now if ended_at is not None else timedelta(0)
    if timedelta(0) < rest <= REST:
        time.sleep(rest.total_seconds())
        now += rest
    slurm.update_pending(job_id, start_at=now, exclude=exclude)


def _resubmit_unless_alive(
    run: RunDir,
    attempt: AttemptDir,
    record: JobRecord | None,
    decision: Decision,
    slurm: SlurmClient,
    journal: JournalWriter,
) -> tuple[bool, str]:
    owner = attempt.read_owner() or {}
    if record is not None and record.restart_count != owner.get("restart_count"):
        return True, f"job {record.job_id} is in the queue again already"
    if record is not None and find_rule(record.state).final:
        return False, f"job {record.job_id} was cancelled: nothing is done"
    if record is not None and not may_decide(Owner.WATCHER, record.state):
        return False, f"job {record.job_id} is {record.state}: not ended yet"
    if record is None:
        why = f"Slurm no longer has job {owner.get('job_id', '')}"
    else:
        why = f"job {record.job_id} was submitted without --requeue"
    return _new_job(run, attempt, decision, why, slurm, journal)


def _new_job(
    run: RunDir, attempt: AttemptDir, decision: Decision, why: str, slurm: SlurmClient, journal: JournalWriter
) -> tuple[bool, str]:
    old = str((attempt.read_owner() or {}).get("job_id", ""))
    exclude = exclude_for_new_job(slurm, run.read_plan().spec, _read_state(run), time.time(), decision)
    job_id = resubmit(run, slurm, journal, "watcher", exclude, instead_of=old)
    without = f" without {exclude}" if exclude else ""
    return True, f"submitted job {job_id}{without}, because {why}"


def _read_state(run: RunDir) -> Run:
    return fold(read_journal(run.journal, skip_unreadable=True))
