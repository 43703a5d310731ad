"""Whether the newest execution of a run's job is over, and how: from squeue, accounting, or what the job left."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmtrain.core.events import JobSeen
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, JobState, StateFlag, is_terminal, parse_job_state
from slurmtrain.core.run import Attempt, Run
from slurmtrain.ops.fallback import read_fallback
from slurmtrain.ops.observe import SETTLED, Observation
from slurmtrain.slurm.client import AccountingRecord, JobRecord
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir

_LOG_TAIL = 64 << 10  # bytes
_CANCELLED = re.compile(
    rb"^slurmstepd(?:-\S+)?: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (?:DUE to SIGNAL \w+ )?\*\*\*", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution that is over."""

    restart_count: int
    state: JobState
    exit_code: int | None
    nodes: str = ""
    cancelled_by: int | None = None
    row: AccountingRecord | None = None


def find_execution_end(run: RunDir, state: Run, job_id: JobId, observation: Observation) -> Execution | None:
    """The end of the newest execution; None while it is not certain (then the next look knows more)."""
    record = observation.jobs.get(job_id)
    row = observation.last_row(job_id)
    if record is not None:
        return _from_squeue(record, row)
    if row is not None:
        return _from_accounting(row, observation, job_id)
    return _from_files(run, state, job_id)


def _from_squeue(record: JobRecord, row: AccountingRecord | None) -> Execution:
    fits = row is not None and row.state.base is record.state.base
    return Execution(
        record.restart_count,
        record.state,
        record.exit_code,
        record.nodes,
        row.cancelled_by if row is not None and fits else None,
        row if fits else None,
    )


def _from_accounting(row: AccountingRecord, observation: Observation, job_id: JobId) -> Execution | None:
    """slurmctld has forgotten the job (MinJobAge); accounting has it."""
    restart = len(observation.history[job_id]) - 1
    if StateFlag.REQUEUED in row.state.flags or row.state.base in {BaseState.PREEMPTED, BaseState.NODE_FAIL}:
        return _vanished_on_its_way_back(row, restart, observation)
    if not is_terminal(row.state, requeue=False) or row.end_time is None:
        return None
    if observation.taken_at - row.end_time < SETTLED:
        return None  # rows can be half written: FAILED with exit code 0 for a moment
    return Execution(restart, row.state, row.exit_code, row.nodes, row.cancelled_by, row)


def _vanished_on_its_way_back(row: AccountingRecord, restart: int, observation: Observation) -> Execution | None:
    """An execution that was requeued, and the job is gone: it was cancelled while it completed.

    Source: a scancel during the COMPLETING phase of a requeue leaves only the REQUEUED row (22.05 and 26.05).
    PREEMPTED and NODE_FAIL without a requeue end the job: those executions are judged, not left.
    """
    if row.end_time is None or observation.taken_at - row.end_time < SETTLED:
        return None
    if StateFlag.REQUEUED in row.state.flags:
        return Execution(restart + 1, parse_job_state("CANCELLED"), None, "", None, row)
    return Execution(restart, row.state, row.exit_code, row.nodes, None, row)


def _from_files(run: RunDir, state: Run, job_id: JobId) -> Execution | None:
    """No accounting, and slurmctld has forgotten the job: what the script wrote, and what was seen last."""
    seen = state.job
    if seen is not None and seen.job_id == str(job_id):
        word = parse_job_state(seen.state)
        if is_terminal(word, requeue=False):
            return Execution(seen.restart_count, word, None, seen.nodes)
        if word.base is BaseState.PENDING and not _has_started(state, seen):  # it did not vanish: it was cancelled
            return Execution(seen.restart_count, parse_job_state("CANCELLED"), None)
    last = state.last_attempt
    if last is None or last.started is None or last.started.job_id != str(job_id):
        return _from_nothing(run, job_id)
    if _log_says_cancelled(run, job_id, last):
        return Execution(last.started.restart_count, parse_job_state("CANCELLED"), None, last.started.nodes)
    code = _exit_code(run, state, job_id, last.started.restart_count)
    return Execution(last.started.restart_count, _state_of(code), code, last.started.nodes)


def _log_says_cancelled(run: RunDir, job_id: JobId, attempt: Attempt) -> bool:
    """Whether slurmstepd wrote into the job's log, after the attempt's last launch had begun, that it was cancelled.

    Any other end by Slurm is named there (``DUE TO TIME LIMIT``, ``DUE TO JOB REQUEUE`` …); see docs/slurm.md.
    """
    launch = attempt.launches[-1].started if attempt.launches else None
    try:
        with run.log_file(str(job_id)).open("rb") as log:
            start = launch.log_offset if launch is not None else 0
            log.seek(max(start, log.seek(0, 2) - _LOG_TAIL))
            return _CANCELLED.search(log.read()) is not None
    except OSError:
        return False


def _has_started(state: Run, seen: JobSeen) -> bool:
    """Whether the execution that was seen waiting has begun since."""
    return any(
        attempt.started is not None
        and attempt.started.job_id == seen.job_id
        and attempt.started.restart_count >= seen.restart_count
        for attempt in state.attempts
    )


def _from_nothing(run: RunDir, job_id: JobId) -> Execution:
    """Nobody saw the job, and no agent could write anything. Slurm makes a job's log when it starts.

    One that never started did not vanish by itself: somebody cancelled it.
    """
    if not exists(run.log_file(str(job_id))):
        return Execution(0, parse_job_state("CANCELLED"), None)
    fallback = read_fallback(run, str(job_id), 0)
    code = fallback.exit_code if fallback is not None else None
    return Execution(0, _state_of(code), code)


def _state_of(code: int | None) -> JobState:
    """Not FAILED: that would be Slurm's word, and a job that was cancelled ends with an exit code, too."""
    return parse_job_state("COMPLETED" if code == 0 else "UNKNOWN")


def _exit_code(run: RunDir, state: Run, job_id: JobId, restart_count: int) -> int | None:
    fallback = read_fallback(run, str(job_id), restart_count)
    if fallback is not None and fallback.exit_code is not None:
        return fallback.exit_code
    launch = state.last_launch
    return launch.ended.exit_code if launch and launch.ended else None
