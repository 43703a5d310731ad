"""A job that Slurm holds for good: it was requeued as often as the site allows, and its owner may not release it.

The run goes on as a new job, and the old one is cancelled.

Source: ``JobHoldMaxRequeue`` in job_mgr.c; counted are lost batch hosts, failed launches, and from 24.05 on jobs that
left in a preemption's grace time, which are no fault of the run at all.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurmtrain.core.decision import Action, Decision, decision_from_dict
from slurmtrain.core.events import Acted, Event
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import is_waiting
from slurmtrain.core.run import Run
from slurmtrain.core.waiting import is_held_for_good
from slurmtrain.errors import SlurmBusyError, SlurmRefusedError
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.ops.requeued import judge_requeued_attempt
from slurmtrain.ops.resubmit import resubmit
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import AttemptDir, Plan, RunDir


def replace_held(
    run: RunDir, plan: Plan, state: Run, record: JobRecord, slurm: SlurmClient, journal: JournalWriter
) -> list[Event]:
    """Decide about the execution before, which no gate will, and put a new job in the place of this one.

    Raises ``SlurmUnavailableError`` and ``StoreError``: the next look goes on from there.
    """
    attempt = _last_attempt(run, record.job_id)
    decision, written = _decision_about(run, plan, attempt, slurm, journal) if attempt is not None else (None, [])
    if decision is not None and decision.action is not Action.REQUEUE:
        slurm.cancel(record.job_id)
        return [
            *written,
            _note(journal, attempt, "cancel", f"cancelled job {record.job_id}, which Slurm held for good"),
        ]
    exclude = ",".join(decision.exclude) or None if decision is not None else None
    try:
        new = resubmit(run, slurm, journal, "watcher", exclude, instead_of=str(record.job_id))
    except (SlurmRefusedError, SlurmBusyError) as exc:
        detail = f"Slurm holds job {record.job_id} until an administrator releases it, and takes no new job: {exc}"
        return written if _was_said(state, detail) else [*written, _note(journal, attempt, "requeue", detail, ok=False)]
    slurm.cancel(record.job_id)
    why = f"job {record.job_id}, which Slurm requeued as often as the site allows and holds for good"
    return [*written, _note(journal, attempt, "requeue", f"submitted job {new} instead of {why}")]


def cancel_replaced(state: Run, job_id: JobId, jobs: Mapping[JobId, JobRecord], slurm: SlurmClient) -> None:
    """Whoever submitted the new job may have died before it could cancel the old one."""
    for record in jobs.values():
        ours = str(record.job_id) in state.submissions.values() and record.job_id != job_id
        if ours and is_waiting(record.state) and is_held_for_good(record.reason):
            slurm.cancel(record.job_id)


def _last_attempt(run: RunDir, job_id: JobId) -> AttemptDir | None:
    attempts = reversed(run.read_attempts())
    return next((a for a in attempts if str((a.read_owner() or {}).get("job_id")) == str(job_id)), None)


def _decision_about(
    run: RunDir, plan: Plan, attempt: AttemptDir, slurm: SlurmClient, journal: JournalWriter
) -> tuple[Decision | None, list[Event]]:
    """What was decided about the execution that Slurm requeued by itself; decided now, where nobody has."""
    written: list[Event] = []
    if attempt.read_decision() is None:
        judged = judge_requeued_attempt(run, plan.spec, attempt, slurm, "watcher")
        if publish_decision(attempt, judged.decision, "watcher"):
            written = [*judged.events, build_decided(attempt.number, judged.decision, "watcher")]
            journal.append(*written, sync=True)
    try:
        return decision_from_dict(attempt.read_decision() or {}), written
    except ValueError:
        return None, written


def _was_said(state: Run, detail: str) -> bool:
    last = state.last_attempt
    return last is not None and any(acted.detail == detail for acted in last.acted)


def _note(journal: JournalWriter, attempt: AttemptDir | None, action: str, detail: str, *, ok: bool = True) -> Acted:
    number = attempt.number if attempt is not None else -1
    event = Acted(at=time.time(), who="watcher", attempt=number, action=action, accepted=ok, detail=detail)
    journal.append(event, sync=True)
    return event
