"""Runs that know of no job: ``slurmtrain submit`` was killed before sbatch answered, or the answer was lost.

Slurm may have the job all the same. So such a run is ended only after a while, where no job that waits could be its
own, and by taking the submission's record: the gate of a job that comes later finds it taken and ends itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta

from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.events import Event
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import is_running, is_waiting
from slurmtrain.core.run import Run
from slurmtrain.core.spec import parse_time_limit
from slurmtrain.ops.decided import build_decided
from slurmtrain.ops.observe import Observation
from slurmtrain.slurm.client import JobRecord
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import publish_once, read_json, to_json
from slurmtrain.store.rundir import Plan, RunDir

NEVER_SUBMITTED_S = 900.0  # a submit that still lives waits for a busy Slurm for less than a minute
_SKEW = timedelta(minutes=5)  # between the clocks of file server, login node and slurmctld
_YOUNG = timedelta(minutes=5)  # a job that has just started may not have reached its gate


def end_unsubmitted(
    run: RunDir, plan: Plan, state: Run, observation: Observation, known: Collection[JobId], journal: JournalWriter
) -> list[Event]:
    """End a run without a job, once it is certain enough that Slurm has none; the events that were written.

    ``known`` are the jobs of the other runs. Raises ``StoreError`` and ``OSError``.
    """
    made = run.plan.stat().st_mtime
    if state.ended or time.time() - made < NEVER_SUBMITTED_S or run.read_attempts():
        return []
    bases = {job_id.base for job_id in known}
    if any(
        record.job_id.base not in bases and _may_be_ours(record, plan, made, observation)
        for record in observation.jobs.values()
    ):
        return []
    nobody = {"job_id": "", "claimed_by": "watcher", "at": time.time()}
    if (
        not publish_once(run.submission(0), to_json(nobody))
        and (read_json(run.submission(0)) or {}).get("job_id") != ""
    ):
        return []  # its gate was faster
    reason = (
        "it was never handed to Slurm: `slurmtrain submit` ended before sbatch answered, and no job of it is to be "
        f"seen; `slurmtrain restart {run.run_id}` submits it"
    )
    decided = build_decided(-1, Decision(Action.STOP, RunState.FAILED, "unknown", reason), "watcher")
    journal.append(decided, sync=True)
    return [decided]


def _may_be_ours(record: JobRecord, plan: Plan, made: float, observation: Observation) -> bool:
    """Whether a job that belongs to no run could be what became of the submission."""
    if record.submit_time is not None and record.submit_time.timestamp() < made - _SKEW.total_seconds():
        return False
    limit = plan.spec.resources.time_limit
    seconds = parse_time_limit(limit) if limit else None
    if seconds is not None and record.time_limit is not None and record.time_limit.total_seconds() != seconds:
        return False
    if is_running(record.state):
        return record.start_time is None or observation.taken_at - record.start_time < _YOUNG
    return is_waiting(record.state)
