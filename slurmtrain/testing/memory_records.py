"""The Slurm in memory as its commands would show it."""

from __future__ import annotations

from slurmtrain.core.jobstate import ENDED, BaseState, StateFlag, parse_job_state
from slurmtrain.core.nodeset import fold_nodes
from slurmtrain.slurm.client import AccountingRecord, JobRecord, NodeRecord, StepRecord
from slurmtrain.testing.memory_model import MemoryJob, MemoryNode, MemoryRow, MemoryStepRow

# job_state_string(): the first of these that is set hides everything else.
_SHOWN_FIRST = (
    StateFlag.COMPLETING,
    StateFlag.STAGE_OUT,
    StateFlag.CONFIGURING,
    StateFlag.RESIZING,
    StateFlag.REQUEUED,
    StateFlag.REQUEUE_HOLD,
    StateFlag.SPECIAL_EXIT,
    StateFlag.STOPPED,
)


def build_job_record(job: MemoryJob) -> JobRecord:
    word = next((flag.value for flag in _SHOWN_FIRST if flag in job.flags), job.base.value)
    state = parse_job_state(word)
    ended = state.base in ENDED
    return JobRecord(
        job_id=job.job_id,
        state=state,
        reason=job.reason,
        restart_count=job.restart_count,
        nodes=fold_nodes(job.nodes),
        node_count=len(job.nodes) or job.request.nodes,
        exit_code=job.exit_code if ended else None,
        signal=(job.signal or None) if ended else None,
        submit_time=job.submit_time,
        begin_time=job.begin_time,
        start_time=job.start_time,
        end_time=job.end_time,
        preempt_time=job.preempt_time,
        time_limit=job.time_limit,
        required_nodes=fold_nodes(job.request.required),
        partition=job.request.partition,
        priority=0 if job.held else 1,
        raw_job_id=job.raw_id,
        user_id=job.uid,
        requeue=job.requeue,
    )


def build_accounting_record(row: MemoryRow) -> AccountingRecord:
    words = row.state.split()
    return AccountingRecord(
        job_id=row.job_id,
        state=parse_job_state(row.state),
        exit_code=row.exit_code,
        signal=row.signal or None,
        derived_exit_code=row.derived_exit_code,
        nodes=row.nodes,
        reason=row.reason,
        submit_time=row.submit_time,
        start_time=row.start_time,
        end_time=row.end_time,
        time_limit=row.time_limit,
        cancelled_by=int(words[2]) if len(words) == 3 else None,
        steps=tuple(_step(step) for step in row.steps),
        raw_job_id=row.raw_job_id,
    )


def _step(step: MemoryStepRow) -> StepRecord:
    return StepRecord(
        name=step.name,
        state=parse_job_state(step.state),
        exit_code=step.exit_code,
        signal=step.signal or None,
        nodes=step.nodes,
        start_time=step.start_time,
        end_time=step.end_time,
    )


def build_node_record(node: MemoryNode, busy_cpus: int, cpus: int, partitions: tuple[str, ...]) -> NodeRecord:
    words = {"DOWN"} if node.down else {"IDLE" if not busy_cpus else "ALLOCATED" if busy_cpus >= cpus else "MIXED"}
    if node.drain:
        words.add("DRAIN")
    return NodeRecord(node.name, frozenset(words), node.reason, partitions, node.features)


def is_over(job: MemoryJob) -> bool:
    """Ended and cleaned up: what MinJobAge counts from."""
    return job.base in ENDED and not job.completing


ACTIVE = frozenset({BaseState.RUNNING, BaseState.SUSPENDED})
