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
    preempt_mode: str = ""  # slurm.conf's, where it was asked for (``needs_preempt_mode``)

    def last_row(self, job_id: JobId) -> AccountingRecord | None:
        """The newest execution of a job in accounting."""
        rows = self.history.get(job_id, ())
        return rows[-1] if rows else None

    def needs_preempt_mode(self, job_id: JobId) -> bool:
        """Whether accounting leaves open how a job ended that Slurm has forgotten: it may have been on its way back."""
        row = self.last_row(job_id)
        return job_id not in self.jobs and (row is None or row.state.base is BaseState.PREEMPTED)


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
    )


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
