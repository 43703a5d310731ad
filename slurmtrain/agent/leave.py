"""Leaving the job: the decision is published, then carried out, then confirmed.

The fast requeue (tried on 22.05, 24.11 and 26.05, see docs/slurm.md): ignore TERM, ``scontrol requeue Incomplete``,
and while the job is COMPLETING move its start time from Slurm's two minutes to a few seconds and exclude nodes.
slurmctld itself refuses a job that is not running any more, so a cancelled job stays cancelled.
"""

from __future__ import annotations

import os
import signal
import time

from slurmtrain.agent.comeback import Place, come_back, place_of, plan_comeback, wait_for_next_second
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import PATIENCE_S, is_ours, look, look_patiently
from slurmtrain.agent.verdict import LaunchEnd
from slurmtrain.core.decision import Action, Decision
from slurmtrain.errors import SlurmtrainError, SlurmUnavailableError, StoreError
from slurmtrain.ops.decided import publish_decision
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.inbox import drop
from slurmtrain.store.rundir import AttemptDir

_CONFIRM_TRIES = 10
_AGAIN_S = 3.0  # until Slurm is asked again


def leave(
    job: JobContext, attempt: AttemptDir, decision: Decision, end: LaunchEnd, slurm: SlurmClient, record: Record
) -> int:
    """Publish and carry out a decision that ends this attempt; the batch script's exit code.

    Where the decision cannot be published, or somebody else had decided, nothing is done: the script ends with the
    launch's code, and the watcher decides or acts.
    """
    return leave_with(job, attempt, decision, end.launch.number, end.own_code, slurm, record)


def leave_with(
    job: JobContext,
    attempt: AttemptDir,
    decision: Decision,
    launch: int,
    exit_code: int,
    slurm: SlurmClient,
    record: Record,
) -> int:
    """As ``leave``, where no launch ended just now; ``launch`` is -1 where there was none."""
    try:
        first = publish_decision(attempt, decision, "agent", launch)
    except StoreError as exc:
        say(f"the decision cannot be written ({exc}); the watcher will decide")
        # The watcher takes 0 for success where nothing tells it that the training was asked to leave.
        return exit_code or (0 if decision.action is Action.COMPLETE else 1)
    if not first:
        say("this attempt was decided by somebody else; nothing is done here")
        return exit_code
    record.decided(launch, decision)
    return carry_out(job, attempt, decision, exit_code, slurm, record)


def carry_out(
    job: JobContext, attempt: AttemptDir, decision: Decision, exit_code: int, slurm: SlurmClient, record: Record
) -> int:
    """Do what was decided, by this agent or by one that died before it could; the batch script's exit code."""
    drop(job.run, f"{attempt.number}-decided")
    if decision.action is Action.COMPLETE:
        job.run.mark_done(
            attempt.number
        )  # from 24.05 on Slurm may start a job again that ended in a preemption's grace
        return 0
    if decision.action is Action.REQUEUE:
        accepted, detail = _requeue(job, place_of(os.environ), decision, slurm, record)
        say(detail)
        return 0 if accepted else exit_code
    return exit_code or (1 if decision.action is Action.HOLD else 0)


def _requeue(job: JobContext, place: Place, decision: Decision, slurm: SlurmClient, record: Record) -> tuple[bool, str]:
    """Whether the job is back in the queue, and in words; written down by whoever knows the most about it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the requeue sends TERM; children inherit that it is ignored
    plan, ahead_s = plan_comeback(job, place, decision, slurm, record)
    if plan.quick:
        wait_for_next_second()
    seen, problem = _ask_for_requeue(job, slurm)
    if seen is None:
        return _note_failure(record, f"not requeued: {problem}")
    if not _requeue_happened(job, slurm):
        return _note_failure(record, "not requeued: the job had ended or was cancelled in the same moment")
    return True, come_back(job, plan, decision, seen, ahead_s, slurm, record)


def _note_failure(record: Record, detail: str) -> tuple[bool, str]:
    record.acted("requeue", accepted=False, detail=detail)
    return False, detail


def _ask_for_requeue(job: JobContext, slurm: SlurmClient) -> tuple[JobRecord | None, str]:
    """The job as it was before, once Slurm took the request; else None and why not.

    A Slurm that does not answer is asked again for a while: the allocation would be lost, and perhaps nobody watches.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        seen = look_patiently(slurm, job.job_id, max(0.0, deadline - time.monotonic()))
        if seen is None:
            return None, "Slurm does not say that the job runs; `slurmtrain watch` requeues it"
        if seen.restart_count > job.restart_count:
            return seen, ""  # the reply to the request had been lost
        if not is_ours(seen, job.restart_count):
            return None, f"Slurm says {seen.state}, so it is not ours to decide here"
        try:
            slurm.requeue(job.job_id, only_running=True)
        except SlurmUnavailableError as exc:
            if time.monotonic() >= deadline:
                return None, str(exc)
            time.sleep(_AGAIN_S)
        except SlurmtrainError as exc:
            return None, str(exc)
        else:
            return seen, ""


def _requeue_happened(job: JobContext, slurm: SlurmClient) -> bool:
    """slurmctld leaves a job that is not running alone and says so to nobody: only the restart count tells."""
    for _ in range(_CONFIRM_TRIES):
        seen = look(slurm, job.job_id)
        if seen is not None:
            return seen.restart_count > job.restart_count
        time.sleep(0.3)
    return True  # nobody answers: assume it was taken; an update of a job that was not is refused
