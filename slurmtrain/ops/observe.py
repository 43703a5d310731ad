"""One look at Slurm for all runs: a single squeue, and a single sacct for the jobs that squeue no longer knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from slurmtrain.core.events import JobSeen
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState
from slurmtrain.core.ownership import Owner, may_decide
from slurmtrain.slurm.client import AccountingRecord, JobRecord, SlurmClient

SETTLED = timedelta(seconds=15)  # an accounting row that ended longer ago is no longer half written


@dataclass(frozen=True, slots=True)
class Observation:
    """What Slurm said about the jobs that were asked for. Absence is no end: a job may be purged or not yet seen."""

    taken_at: datetime
    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    history: Mapping[JobId, tuple[AccountingRecord, ...]] = field(default_factory=dict)
    accounting: bool = True
    preempt_mode: str = ""  # slurm.conf's; asked for only where a job is gone and its last row leaves the end open

    def last_row(self, job_id: JobId) -> AccountingRecord | None:
        """The newest execution of a job in accounting."""
        rows = self.history.get(job_id, ())
        return rows[-1] if rows else None


def observe(slurm: SlurmClient, job_ids: Iterable[JobId]) -> Observation:
    """Raises ``SlurmUnavailableError`` when the controller does not answer: then nothing is known."""
    wanted = set(job_ids)
    snapshot = slurm.observe(None)
    ended = {
        job_id
        for job_id in wanted
        if job_id not in snapshot.jobs
        or may_decide(Owner.WATCHER, snapshot.jobs[job_id].state, requeue=snapshot.jobs[job_id].requeue)
    }
    rows: dict[JobId, list[AccountingRecord]] = {}
    for row in slurm.history(ended) if ended else ():
        rows.setdefault(row.job_id, []).append(row)
    return Observation(
        snapshot.taken_at,
        snapshot.jobs,
        {job_id: tuple(found) for job_id, found in rows.items()},
        bool(rows) or not ended,
        slurm.capabilities().preempt_mode
        if any(_is_open(rows.get(job_id)) for job_id in ended - {*snapshot.jobs})
        else "",
    )


def _is_open(rows: list[AccountingRecord] | None) -> bool:
    """Whether accounting does not say how a job ended that Slurm has forgotten: it may have been on its way back."""
    return not rows or rows[-1].state.base is BaseState.PREEMPTED


def build_job_seen(record: JobRecord, *, at: float, who: str, attempt: int = -1) -> JobSeen:
    """What a look at Slurm showed of a run's job, as an event."""
    return JobSeen(
        at=at,
        who=who,
        attempt=attempt,
        job_id=str(record.job_id),
        restart_count=record.restart_count,
        state=str(record.state),
        reason=record.reason,
        nodes=record.nodes,
    )
