"""Letting a held run go on: a new job of the same run, exactly one however many people ask."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.events import Acted, Event, Released, SubmissionUncertain
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import is_waiting
from slurmtrain.core.nodeset import join_nodes
from slurmtrain.core.run import Run
from slurmtrain.core.waiting import explain_waiting, is_held_for_good
from slurmtrain.errors import (
    HostUnreachableError,
    NotFoundError,
    RefusedError,
    SlurmBusyError,
    SlurmRefusedError,
    SlurmtrainError,
    SlurmUnavailableError,
    StoreError,
    UsageError,
)
from slurmtrain.ops.decided import build_decided
from slurmtrain.ops.exclude import exclude_for_new_job
from slurmtrain.ops.resubmit import resubmit
from slurmtrain.ops.status import see_jobs
from slurmtrain.ops.timeline import RunView, find_plan, read_view
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.inbox import drop
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import publish_once, read_json, replace, to_json
from slurmtrain.store.rundir import RunDir

_CLAIM_S = 900.0  # longer than sbatch and its retries can take: an older claim's maker has died


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What letting the run go takes: a new job, or Slurm's own release of job ``record``."""

    new_job: bool
    record: JobRecord | None
    sentence: str
    now: bool = False  # it is not held, its start lies ahead


def plan_release(view: RunView, slurm: SlurmClient) -> ReleasePlan:
    """Raises ``RefusedError`` for a run that has ended, ``SlurmUnavailableError`` where Slurm does not answer."""
    run, state = view.run, view.state
    if state.ended:
        raise RefusedError(
            f"{run.run_id} has ended ({state.state.value}); `slurmtrain restart {run.run_id}` makes a new run of it"
        )
    if run.stop_file.exists():
        raise RefusedError(f"{run.run_id} was asked to stop ({run.stop_file}); a new job would leave at once")
    if state.state is RunState.HELD or is_half_released(state):
        slurm.capabilities()  # a question whose answer is not needed: does Slurm answer at all?
        return ReleasePlan(True, None, f"submit a new job of run {run.run_id}, which continues from its checkpoint")
    sights, problem = see_jobs([view], slurm)
    if problem:
        raise SlurmUnavailableError(problem)
    record = sights[run.run_id].record if run.run_id in sights else None
    if record is not None and is_waiting(record.state) and _delayed(view, record):
        return ReleasePlan(False, record, f"start job {record.job_id} now, which waits for its retry", now=True)
    if record is None or not is_waiting(record.state) or explain_waiting(record.reason).helps is True:
        return ReleasePlan(False, None, f"nothing to do: {run.run_id} is not held, it is {state.state.value}")
    if is_held_for_good(record.reason):
        return ReleasePlan(True, record, f"submit a new job instead of job {record.job_id}, which Slurm holds for good")
    if "held" in record.reason.lower():
        return ReleasePlan(False, record, f"release job {record.job_id}, which Slurm holds")
    return ReleasePlan(False, None, f"nothing to do: job {record.job_id} waits ({record.reason}) and is not held")


def is_half_released(state: Run) -> bool:
    """A person has let it go, and no job of it was made yet: `release` is at it, or it died."""
    decision = state.last_decision
    return state.state is RunState.PENDING and decision is not None and decision.action is Action.HOLD


def finish_release(
    run: RunDir, state: Run, attempt: int, job_id: JobId, slurm: SlurmClient, journal: JournalWriter
) -> list[Event]:
    """Submit the job that a `release` which died owes the run; ``job_id`` is the last one that the run has.

    Under the same submission's number, so that a job whose reply was lost and this one are one to the gate.
    """
    if not is_half_released(state) or run.stop_file.exists():
        return []
    claim = read_json(_claim_file(run, attempt)) or {}
    begun = claim.get("at")
    at = begun if isinstance(begun, (int, float)) and begun < time.time() + _CLAIM_S else state.history[-1].at
    if time.time() - at < _CLAIM_S:
        return []
    try:
        nodes = join_nodes(str(claim.get("exclude") or ""))
    except ValueError:
        nodes = ""
    nodes = nodes or exclude_for_new_job(slurm, run.read_plan().spec, state, time.time()) or ""
    try:
        new = resubmit(run, slurm, journal, "watcher", nodes or None, instead_of=str(job_id))
    except SlurmRefusedError as exc:
        return [_hold_again(run, attempt, journal, exc, "watcher")]
    detail = f"submitted job {new}: a release had ended before it could"
    event = Acted(at=time.time(), who="watcher", attempt=attempt, action="release", accepted=True, detail=detail)
    journal.append(event, sync=True)
    return [event]


def _delayed(view: RunView, record: JobRecord) -> bool:
    """Our own delay, or the wait for another run."""
    decision = view.state.last_decision
    return record.reason == "BeginTime" and decision is not None and decision.delay_s > 0


def release_run(run: RunDir, slurm: SlurmClient, by: str, exclude: str = "") -> str:
    """Let it go; what was done, as a sentence. ``exclude`` are nodes that a new job must avoid, too."""
    view = read_view(run)
    plan = plan_release(view, slurm)
    journal = JournalWriter(run.journal, f"release-{socket.gethostname()}-{os.getpid()}")
    if plan.new_job:
        return _submit_anew(view, plan, slurm, journal, by, exclude)
    if plan.record is None:
        return plan.sentence
    if plan.now:
        slurm.update_pending(plan.record.job_id, start_at=datetime.now(timezone.utc))
    else:
        slurm.release(plan.record.job_id)
    detail = f"{by} released job {plan.record.job_id}, which {'waited' if plan.now else 'Slurm held'}"
    journal.append(
        Acted(
            at=time.time(),
            who="user",
            attempt=view.last_attempt_number,
            action="release",
            accepted=True,
            detail=detail,
        )
    )
    return f"job {plan.record.job_id} of {run.run_id} is released"


def _submit_anew(
    view: RunView, plan: ReleasePlan, slurm: SlurmClient, journal: JournalWriter, by: str, exclude: str
) -> str:
    run, number = view.run, view.last_attempt_number
    nodes = _excluded(view, slurm, exclude)
    if not run.batch_script.is_file():
        raise NotFoundError(f"{run.batch_script} is missing: nothing can be submitted")
    _claim(run, number, by, nodes)
    # Before the job exists: its gate lets nobody in while the journal says that the run is held.
    journal.append(Released(at=time.time(), who="user", attempt=number, by=by), sync=True)
    try:
        job_id = resubmit(run, slurm, journal, "user", nodes)
    except (SlurmRefusedError, SlurmBusyError, HostUnreachableError, StoreError) as exc:
        _hold_again(run, number, journal, exc, "user")
        raise
    except SlurmUnavailableError as exc:
        uncertain = SubmissionUncertain(
            at=time.time(), who="user", attempt=number, submission=len(view.state.submissions), message=str(exc)
        )
        journal.append(uncertain, sync=True)
        raise
    if plan.record is not None:
        slurm.cancel(plan.record.job_id)
    drop(run, "release")
    return f"{run.run_id} goes on as job {job_id}" + (f" without {nodes}" if nodes else "")


def _excluded(view: RunView, slurm: SlurmClient, exclude: str) -> str | None:
    """The nodes that the run keeps out and those that the person adds; the job's own list is joined at submission."""
    try:
        given = join_nodes(exclude)
    except ValueError as exc:
        raise UsageError(f"--exclude: {exc}") from exc
    plan = find_plan(view.run)
    ours = exclude_for_new_job(slurm, plan.spec, view.state, time.time()) if plan is not None else None
    return join_nodes(ours or "", given) or None


def _claim_file(run: RunDir, attempt: int) -> Path:
    return run.submissions / f"release-{max(attempt, 0):03d}.json"


def _claim(run: RunDir, attempt: int, by: str, exclude: str | None) -> None:
    """One release for one hold. Raises ``RefusedError`` while somebody else's is under way."""
    path = _claim_file(run, attempt)
    record = to_json({"by": by, "pid": os.getpid(), "at": time.time(), "exclude": exclude or ""})
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    if publish_once(path, record):
        return
    before = read_json(path) or {}
    at = before.get("at")
    if isinstance(at, (int, float)) and time.time() - at < _CLAIM_S:
        raise RefusedError(f"{before.get('by', 'somebody')} is releasing {run.run_id} at this moment; nothing was done")
    replace(path, record)


def _hold_again(run: RunDir, attempt: int, journal: JournalWriter, exc: SlurmtrainError, who: str) -> Event:
    """No job was made, so the run is as it was; a later release may try again."""
    decision = Decision(Action.HOLD, RunState.HELD, "unknown", f"the release failed: {exc}")
    last = read_view(run).state.last_decision
    if last is not None:
        decision = Decision(Action.HOLD, RunState.HELD, last.cause, last.reason, exclude=last.exclude)
    decided = dataclasses.replace(build_decided(attempt, decision, who), again=True)
    journal.append(decided, sync=True)
    with contextlib.suppress(OSError):
        _claim_file(run, attempt).unlink()
    return decided
