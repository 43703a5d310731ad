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
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import is_ours, look
from slurmtrain.agent.verdict import LaunchEnd
from slurmtrain.core.decision import Action, Decision, decision_to_dict
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.ops.exclude import join_excluded
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.inbox import drop
from slurmtrain.store.rundir import AttemptDir

CLEAN_UP = timedelta(seconds=8)  # how long Slurm may take to clean up before the job may start again
_UPDATE_TRIES = 5
_CONFIRM_TRIES = 10


def leave(
    job: JobContext, attempt: AttemptDir, decision: Decision, end: LaunchEnd, slurm: SlurmClient, record: Record
) -> int:
    """Publish and carry out a decision that ends this attempt; the batch script's exit code.

    Where the decision cannot be published, or somebody else had decided, nothing is done: the script ends with the
    launch's code, and the watcher decides or acts.
    """
    if not _publish(job, attempt, decision, end.launch.number, record):
        return end.exit_code
    drop(job.run, f"{attempt.number}-decided")
    if decision.action is Action.COMPLETE:
        _mark_done(job, attempt)
        return 0
    if decision.action is Action.REQUEUE:
        accepted, detail = _requeue(job, decision, slurm)
        say(detail)
        record.acted("requeue", accepted=accepted, detail=detail)
        return 0 if accepted else end.exit_code
    return end.exit_code or (1 if decision.action is Action.HOLD else 0)


def _publish(job: JobContext, attempt: AttemptDir, decision: Decision, launch: int, record: Record) -> bool:
    body = {**decision_to_dict(decision), "decided_by": "agent", "launch": launch, "at": time.time()}
    try:
        first = attempt.publish_decision(body)
    except StoreError as exc:
        say(f"the decision cannot be written ({exc}); the watcher will decide")
        return False
    if not first:
        say("this attempt was decided by somebody else; nothing is done here")
        return False
    record.decided(launch, decision)
    return True


def _mark_done(job: JobContext, attempt: AttemptDir) -> None:
    """From 24.05 on Slurm may start a finished job once more after a graced preemption: this ends it at the gate."""
    with contextlib.suppress(OSError):
        if not job.run.done_file.exists():
            job.run.done_file.write_text(f"attempt {attempt.number}\n")


def _requeue(job: JobContext, decision: Decision, slurm: SlurmClient) -> tuple[bool, str]:
    seen = look(slurm, job.job_id)
    if seen is None or not is_ours(seen, job.restart_count):
        state = "unknown" if seen is None else str(seen.state)
        return False, f"not requeued: Slurm says {state}, so it is not ours to decide here"
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the requeue sends TERM; children inherit that it is ignored
    try:
        slurm.requeue(job.job_id, only_running=True)
    except SlurmtrainError as exc:
        return False, f"not requeued: {exc}"
    if not _requeue_happened(job, slurm):
        return False, "not requeued: the job had ended or was cancelled in the same moment"
    delay = CLEAN_UP + timedelta(seconds=decision.delay_s)
    exclude = join_excluded(slurm, seen, decision.exclude)
    updated = _move_start(job, slurm, delay, exclude)
    words = f" without {exclude}" if exclude else ""
    when = f"starts again in {delay.total_seconds():.0f} s" if updated else "starts again when Slurm's delay is over"
    return True, f"requeued{words}, {when}"


def _requeue_happened(job: JobContext, slurm: SlurmClient) -> bool:
    """slurmctld leaves a job that is not running alone and says so to nobody: only the restart count tells."""
    for _ in range(_CONFIRM_TRIES):
        seen = look(slurm, job.job_id)
        if seen is not None:
            return seen.restart_count > job.restart_count
        time.sleep(0.3)
    return True  # nobody answers: assume it was taken; an update of a job that was not is refused


def _move_start(job: JobContext, slurm: SlurmClient, delay: timedelta, exclude: str | None) -> bool:
    for _ in range(_UPDATE_TRIES):
        try:
            slurm.update_pending(job.job_id, start_after=delay, exclude=exclude)
        except SlurmtrainError:
            time.sleep(0.3)
        else:
            return True
    return False
