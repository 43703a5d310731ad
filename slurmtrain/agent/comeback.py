"""Coming back in seconds: the start time of the requeued job is moved while it is COMPLETING (``core.comeback``).

Times that slurmctld is told are by its clock, which need not be this node's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.core.comeback import LEAVES_S, UNKNOWN_S, Comeback, choose_comeback, clean_up_times
from slurmtrain.core.decision import Action, Decision
from slurmtrain.core.run import find_attempt
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.exclude import join_excluded
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.learnt import add_clean_up, read_clean_ups

_UPDATE_TRIES = 5
_LATE_S = 0.5  # so much later than planned the quick way would cost Slurm's 121 s
_AFTER_THE_SECOND_S = 0.02
_MAX_SKEW_S = 900


@dataclass(frozen=True, slots=True)
class Place:
    """Where clean-up times belong together."""

    cluster: str
    partition: str


def place_of(env: Mapping[str, str]) -> Place:
    return Place(env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_PARTITION", ""))


def plan_comeback(
    job: JobContext, place: Place, decision: Decision, slurm: SlurmClient, record: Record
) -> tuple[Comeback, int]:
    """Before the job is asked for: how to come back, and by how many seconds slurmctld's clock is ahead of ours."""
    wanted = job.plan.spec.retry.clean_up_s
    seen = list(clean_up_times(record.read_run()))
    seen = seen or read_clean_ups(job.run.path.parent.parent, place.cluster, place.partition)
    epilog, ahead_s = True, 0
    with contextlib.suppress(SlurmtrainError):
        asked_at = time.time()
        cluster = slurm.capabilities()
        epilog, ahead_s = cluster.epilog, _ahead_s(cluster.clock, asked_at)
    plan = choose_comeback(seen, wanted_s=wanted, epilog=epilog or ahead_s != 0)
    if decision.delay_s > plan.seconds:
        plan = Comeback(quick=False, seconds=decision.delay_s)
    return plan, ahead_s


def _ahead_s(theirs: datetime | None, asked_at: float) -> int:
    """Whole seconds; one may be due to the moment of the question."""
    ahead = int(theirs.timestamp()) - int(asked_at) if theirs is not None else 0
    return ahead if 1 < abs(ahead) <= _MAX_SKEW_S else 0


def wait_for_next_second() -> None:
    """slurmctld counts in whole seconds: at the beginning of one the quick way has the most of them."""
    time.sleep(1 - time.time() % 1 + _AFTER_THE_SECOND_S)


def come_back(
    job: JobContext,
    plan: Comeback,
    decision: Decision,
    before: JobRecord,
    ahead_s: int,
    slurm: SlurmClient,
    record: Record,
) -> str:
    """Move the start of the job, which is COMPLETING; what was done, as a sentence. The script must end at once then.

    ``before`` is the job as it ran, ``ahead_s`` by how much slurmctld's clock is ahead of ours.
    """
    if not plan.quick:
        exclude = _exclude(job, before, decision, slurm, record)
        moved = _move_start(job, slurm, time.time() + ahead_s + plan.seconds, exclude)
        return _note(record, moved, plan.seconds, exclude, time.time() + ahead_s)
    asked_at = time.time()
    start = int(asked_at) + ahead_s + plan.seconds
    moved = _move_start(job, slurm, start, None)
    exclude = _exclude(job, before, decision, slurm, record)
    detail = _note(record, moved, plan.seconds, exclude, asked_at + LEAVES_S + ahead_s)
    time.sleep(max(0.0, asked_at + LEAVES_S - time.time()))
    if time.time() > asked_at + LEAVES_S + _LATE_S:
        start = int(time.time()) + ahead_s + UNKNOWN_S
    if not _move_start(job, slurm, start, exclude) and exclude:
        say(f"Slurm lets nobody move the start here; the nodes to avoid were asked for alone: {exclude}")
    return detail


def _exclude(job: JobContext, before: JobRecord, decision: Decision, slurm: SlurmClient, record: Record) -> str | None:
    return join_excluded(slurm, before, job.plan.spec, record.read_run(), time.time(), decision)


def _note(record: Record, moved: bool, seconds: int, exclude: str | None, leaves_at: float) -> str:
    words = f" without {exclude}" if exclude else ""
    when = f"starts again in {seconds} s" if moved else "starts again when Slurm's delay is over"
    detail = f"requeued{words}, {when}"
    record.acted("requeue", accepted=True, detail=detail, leaves_at=leaves_at)
    return detail


def _move_start(job: JobContext, slurm: SlurmClient, start: float, exclude: str | None) -> bool:
    at = datetime.fromtimestamp(int(start), tz=timezone.utc)
    for _ in range(_UPDATE_TRIES):
        try:
            slurm.update_pending(job.job_id, start_at=at, exclude=exclude)
        except SlurmtrainError:
            time.sleep(0.3)
        else:
            return True
    if exclude is not None:  # a site may forbid the one and allow the other
        with contextlib.suppress(SlurmtrainError):
            slurm.update_pending(job.job_id, exclude=exclude)
    return False


def learn(job: JobContext, place: Place, now: JobRecord | None, record: Record) -> None:
    """In the execution that came back: how long the clean-up behind the one before took. Never raises."""
    number = record.attempt - 1
    before = find_attempt(record.read_run(), number)
    if now is None or now.submit_time is None or before is None or before.came_back is not None:
        return
    if before.started is None or before.started.job_id != str(job.job_id):
        return
    left = next((act.leaves_at for act in reversed(before.acted) if act.action == Action.REQUEUE.value), None)
    if left is None or now.restart_count != before.started.restart_count + 1:
        return
    # Slurm sets a requeued job's submission anew, in the second in which it has cleaned up.
    clean_up = now.submit_time.timestamp() + 1 - left
    waited = now.start_time.timestamp() - left if now.start_time is not None else 0.0
    if clean_up < 0:
        return
    record.came_back(number, clean_up, waited)
    add_clean_up(job.run.path.parent.parent, place.cluster, place.partition, clean_up, time.time())
