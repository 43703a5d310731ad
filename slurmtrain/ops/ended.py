"""Whether the newest execution of a run's job is over, and how: from squeue, accounting, or what the job left."""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmtrain.core.events import JobSeen
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, JobState, StateFlag, is_terminal, parse_job_state
from slurmtrain.core.run import Attempt, Run
from slurmtrain.ops.claim import find_claimed
from slurmtrain.ops.fallback import read_fallback
from slurmtrain.ops.observe import SETTLED, Observation
from slurmtrain.slurm.client import AccountingRecord, JobRecord
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir

FIRST_LINE = "slurmtrain: job {job_id}, execution {restart_count} begins"  # train.sbatch.j2 says it
_LOG_PART = 256 << 10  # bytes
_CANCELLED = re.compile(
    rb"^slurmstepd(?:-\S+)?: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ (?:DUE to SIGNAL \w+ )?\*\*\*", re.MULTILINE
)
_TAKEN = re.compile(
    rb"^slurmstepd(?:-\S+)?: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ "
    rb"DUE TO (PREEMPTION|JOB REQUEUE|NODE FAILURE)",
    re.MULTILINE,
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
        return _from_accounting(run, state, row, observation, job_id)
    return _from_files(run, state, job_id, observation.preempt_mode)


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


def _from_accounting(
    run: RunDir, state: Run, row: AccountingRecord, observation: Observation, job_id: JobId
) -> Execution | None:
    """slurmctld has forgotten the job (MinJobAge); accounting has it."""
    restart = len(observation.history[job_id]) - 1
    if StateFlag.REQUEUED in row.state.flags or row.state.base in {BaseState.PREEMPTED, BaseState.NODE_FAIL}:
        return _vanished_on_its_way_back(run, state, row, restart, observation, job_id)
    if not is_terminal(row.state, requeue=False) or row.end_time is None:
        return None
    if observation.taken_at - row.end_time < SETTLED:
        return None  # rows can be half written: FAILED with exit code 0 for a moment
    return Execution(restart, row.state, row.exit_code, row.nodes, row.cancelled_by, row)


def _vanished_on_its_way_back(
    run: RunDir, state: Run, row: AccountingRecord, restart: int, observation: Observation, job_id: JobId
) -> Execution | None:
    """An execution that was requeued, and the job is gone: it was cancelled while it completed.

    Source: a scancel during the COMPLETING phase of a requeue leaves only the row before it (22.05 and 26.05).
    PREEMPTED and NODE_FAIL without a requeue end the job: those executions are judged, not left. Which of both it was
    the row does not say. A lost node has each of our jobs requeued (they are submitted with ``--requeue``), and so has
    a preemption unless ``PreemptMode`` says otherwise; unless a look at Slurm showed the end itself.
    """
    if row.end_time is None or observation.taken_at - row.end_time < SETTLED:
        return None
    seen = state.job if state.job is not None and state.job.job_id == str(job_id) else None
    came_back = seen is not None and seen.restart_count > restart
    ended = seen is not None and seen.restart_count == restart and _is_leaving_for_good(seen, row.state)
    requeues = row.state.base is BaseState.NODE_FAIL or "REQUEUE" in observation.preempt_mode.upper()
    sure = came_back or StateFlag.REQUEUED in row.state.flags or _asked_to_come_back(state, job_id, restart)
    if sure or (requeues and not ended):
        return _unrecorded(run, state, job_id, restart + 1, seen if came_back else None)  # accounting may lag behind
    return Execution(restart, row.state, row.exit_code, row.nodes, None, row)


def _is_leaving_for_good(seen: JobSeen, end: JobState) -> bool:
    """Whether a look showed the end itself: a requeue counts the job up in the moment in which it takes it."""
    word = parse_job_state(seen.state)
    return word.base is end.base or StateFlag.COMPLETING in word.flags


def _asked_to_come_back(state: Run, job_id: JobId, restart: int) -> bool:
    """Whether the execution's own agent had the job requeued, and Slurm had counted it up since."""
    attempt = next((a for a in state.attempts if _is_of(a, job_id) and _restart_count(a) == restart), None)
    acted = attempt.acted if attempt is not None else ()
    return any(act.who == "agent" and act.action == "requeue" and act.accepted for act in acted)


def _is_of(attempt: Attempt, job_id: JobId) -> bool:
    return attempt.started is not None and attempt.started.job_id == str(job_id)


def _from_files(run: RunDir, state: Run, job_id: JobId, preempt_mode: str) -> Execution | None:
    """No accounting, and slurmctld has forgotten the job: what the script wrote, and what was seen last."""
    seen = state.job if state.job is not None and state.job.job_id == str(job_id) else None
    attempts = [a for a in state.attempts if _is_of(a, job_id)]
    last = max(attempts, key=_restart_count) if attempts else None
    newest = seen is not None and (last is None or _restart_count(last) <= seen.restart_count)
    if seen is not None and newest and is_terminal(word := parse_job_state(seen.state), requeue=False):
        return Execution(seen.restart_count, word, None, seen.nodes)
    if seen is not None and (last is None or _restart_count(last) < seen.restart_count):
        return _unrecorded(run, state, job_id, seen.restart_count, seen)
    if last is None:
        return _unrecorded(run, state, job_id, 0, None)
    restart, nodes = _restart_count(last), last.started.nodes if last.started else ""
    if _log_says_cancelled(run, state, job_id, restart):
        return Execution(restart, parse_job_state("CANCELLED"), None, nodes)
    if _asked_to_come_back(state, job_id, restart) or _log_says_requeued(run, state, job_id, restart, preempt_mode):
        return _unrecorded(run, state, job_id, restart + 1, None)
    code = _exit_code(run, last, job_id, restart)
    return Execution(restart, _state_of(code), code, nodes)


def _restart_count(attempt: Attempt) -> int:
    return attempt.started.restart_count if attempt.started is not None else -1


def _unrecorded(run: RunDir, state: Run, job_id: JobId, restart: int, seen: JobSeen | None) -> Execution:
    """An execution of which neither accounting nor a gate tells: its agent could not write, or it never started.

    One that never started did not vanish by itself: somebody cancelled it. Slurm makes a job's log when it starts for
    the first time, and the batch script's first line there says which execution begins.
    """
    if not _has_started(run, state, job_id, restart, seen) or _log_says_cancelled(run, state, job_id, restart):
        return Execution(restart, parse_job_state("CANCELLED"), None)
    fallback = read_fallback(run, str(job_id), restart)
    code = fallback.exit_code if fallback is not None else None
    return Execution(restart, _state_of(code), code, seen.nodes if seen is not None else "")


def _has_started(run: RunDir, state: Run, job_id: JobId, restart: int, seen: JobSeen | None) -> bool:
    if seen is not None and parse_job_state(seen.state).base is BaseState.RUNNING:
        return True
    if not exists(run.log_file(str(job_id))):
        return False
    if restart == 0:
        return True
    if find_claimed(run, str(job_id), restart) is not None or read_fallback(run, str(job_id), restart) is not None:
        return True
    begins = FIRST_LINE.format(job_id=job_id, restart_count=restart).encode()
    return any(line.startswith(begins) for line in _read_log_of(run, state, job_id, restart).splitlines())


def _log_says_cancelled(run: RunDir, state: Run, job_id: JobId, restart: int) -> bool:
    """Whether slurmstepd wrote into the job's log, in this execution's part of it, that the job was cancelled.

    Any other end by Slurm is named there (``DUE TO TIME LIMIT``, ``DUE TO JOB REQUEUE`` …); see docs/slurm.md.
    """
    return _CANCELLED.search(_read_log_of(run, state, job_id, restart)) is not None


def _log_says_requeued(run: RunDir, state: Run, job_id: JobId, restart: int, preempt_mode: str) -> bool:
    """Whether slurmstepd wrote there that Slurm took the job and queues it again."""
    found = _TAKEN.search(_read_log_of(run, state, job_id, restart))
    return found is not None and (found[1] != b"PREEMPTION" or "REQUEUE" in preempt_mode.upper())


def _read_log_of(run: RunDir, state: Run, job_id: JobId, restart: int) -> bytes:
    """The beginning and the end of what an execution wrote into the job's log; empty where it cannot be read.

    It begins with the batch script's first line of it, or behind what is known of the executions before: slurmstepd
    writes how one of those ended behind its launches.
    """
    start = 0
    for attempt in state.attempts:
        if _is_of(attempt, job_id) and _restart_count(attempt) < restart:
            for launch in attempt.launches:
                start = max(start, launch.started.log_offset if launch.started else 0)
                start = max(start, launch.ended.log_end if launch.ended else 0)
    try:
        with run.log_file(str(job_id)).open("rb") as log:
            size = log.seek(0, 2)
            log.seek(start)
            head = log.read(_LOG_PART)
            log.seek(max(start + len(head), size - _LOG_PART))
            return _since_its_first_line(head, job_id, restart) + b"\n" + log.read(_LOG_PART)
    except OSError:
        return b""


def _since_its_first_line(text: bytes, job_id: JobId, restart: int) -> bytes:
    _, begins, after = (b"\n" + text).partition(
        b"\n" + FIRST_LINE.format(job_id=job_id, restart_count=restart).encode()
    )
    return begins[1:] + after if begins else text


def _state_of(code: int | None) -> JobState:
    """Not FAILED: that would be Slurm's word, and a job that was cancelled ends with an exit code, too."""
    return parse_job_state("COMPLETED" if code == 0 else "UNKNOWN")


def _exit_code(run: RunDir, attempt: Attempt, job_id: JobId, restart_count: int) -> int | None:
    fallback = read_fallback(run, str(job_id), restart_count)
    if fallback is not None and fallback.exit_code is not None:
        return fallback.exit_code
    launch = attempt.launches[-1] if attempt.launches else None
    return launch.ended.exit_code if launch and launch.ended else None
