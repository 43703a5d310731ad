"""What to do about a launch that ended, decided by the agent while squeue says RUNNING, and by nobody else then."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.agent.hang import explain_hang
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.launch import EndedSrun, LaunchProcess
from slurmtrain.agent.measure import count_gpus, count_oom_kills, heartbeat_age
from slurmtrain.agent.record import Record
from slurmtrain.agent.saving import describe_saving
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import StopReason, is_ours, is_preempted, look_patiently
from slurmtrain.checkpoints.find import Found, find_newest, find_written
from slurmtrain.core.components import task_offsets
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.policy import Ending, decide
from slurmtrain.core.spec import Spec, has_node_logs
from slurmtrain.errors import StoreError
from slurmtrain.logs.step import read_step
from slurmtrain.ops.breaker import with_breaker
from slurmtrain.ops.judge import LogRange, decide_ending, diagnose_log
from slurmtrain.ops.launch_exit import LaunchExit, read_launch_exit, write_launch_exit
from slurmtrain.ops.requeued import read_srun_words
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.rundir import HEARTBEAT, AttemptDir

_NO_FAILURE = Diagnosis("no_failure", "none", retryable=False, action="none")  # nothing is looked for in the log
_CHECK_S, _HURRIED_CHECK_S = 10.0, 2.0  # for what a launch saved last; before Slurm's own end there is no time
BY_A_SIGNAL = "signal"  # why it left: somebody signalled its steps, and Slurm goes on with the job
BY_SLURM = "slurm"  # why a launch ended while Slurm took the job away: a requeue, a cancel, a preemption, a lost node


@dataclass(frozen=True, slots=True)
class LaunchEnd:
    """How a launch ended: its exit code (0 only for success), and the stop that it had been asked for."""

    launch: LaunchProcess
    stop: StopReason | None
    exit_code: int
    resumed_from: Path | None
    rank_exits: tuple[RankExit, ...] = ()  # in the order in which srun told of them
    signalled_at: float | None = None  # when somebody, not we, signalled the steps last; seconds since the epoch

    @property
    def own_code(self) -> int:
        """The exit code of the rank that ended first; srun's own is that of the peers it killed."""
        return culprit_code(self.exit_code, self.rank_exits)


def read_launch_end(
    launch: LaunchProcess,
    stop: StopReason | None,
    code: int,
    resumed_from: Path | None,
    *,
    primary_done: bool,
    offsets: Mapping[str, int] | None = None,
    signalled_at: float | None = None,
) -> LaunchEnd:
    """The end of a launch from srun's exit code and srun's words.

    ``offsets`` are those of a heterogeneous job's nodes (``core.components.task_offsets``).
    srun exits 0 also when it lost a node; and ``success: primary`` is fulfilled whatever its code.
    """
    words = read_srun_words(_log_of(launch), offsets)
    if primary_done:
        code = 0
    elif code == 0 and words.lost_a_node:
        code = 1
    return LaunchEnd(launch, stop, code, resumed_from, words.rank_exits, signalled_at)


def write_down(job: JobContext, attempt: AttemptDir, end: LaunchEnd, *, primary_done: bool, signalled: bool) -> None:
    """Keep the end for whoever comes after an agent that dies before it has decided.

    ``signalled``: Slurm had sent a signal, so it may be Slurm that ended the launch.
    """
    launch = end.launch
    written = LaunchExit(
        srun_code=launch.poll() or 0,
        exit_code=end.own_code,
        started_at=launch.started_at,
        ended_at=time.time(),
        log_offset=launch.log_offset,
        log_end=launch.log_end(),
        stop_reason=_known_reason(job, end) or (BY_SLURM if signalled else None),
        resumed_from=str(end.resumed_from) if end.resumed_from else None,
        primary_done=primary_done,
    )
    write_launch_exit(attempt, launch.number, written)


def find_left_end(job: JobContext, attempt: AttemptDir, number: int) -> LaunchEnd | None:
    """The end of a launch whose agent died before it had decided; None where the launch had not ended then."""
    try:
        left = read_launch_exit(attempt, number)
    except StoreError as exc:
        say(str(exc))
        return None
    if left is None:
        return None
    launch = LaunchProcess(
        number, EndedSrun(left.srun_code), job.log_file, left.log_offset, left.started_at, attempt.launch(number),
        per_node=has_node_logs(job.plan.spec),
    )  # fmt: skip
    asked = left.stop_reason is not None and left.stop_reason != BY_SLURM  # of Slurm it is asked when it is judged
    stop = StopReason(left.stop_reason, None) if left.stop_reason and asked else None
    resumed_from = Path(left.resumed_from) if left.resumed_from else None
    offsets = task_offsets(job.plan.spec, job.nodes)
    return read_launch_end(launch, stop, left.srun_code, resumed_from, primary_done=left.primary_done, offsets=offsets)


def judge_launch(job: JobContext, end: LaunchEnd, slurm: SlurmClient, record: Record) -> Decision | None:
    """Write down the end, diagnose, decide; None where the job is not RUNNING any more: then others decide."""
    launch, spec, ended_at = end.launch, job.plan.spec, time.time()
    log = _log_of(launch)
    seen = look_patiently(slurm, job.job_id)
    ours = seen is not None and is_ours(seen, job.restart_count)
    done, (newest, broken) = job.run.is_done(), _find_written(job, end)
    reason = _stop_reason(job, end, seen, ours=ours) or (BY_A_SIGNAL if _left_for_a_signal(end, newest) else None)
    saved = ""
    if reason not in (None, "metric") and not done:
        saved = describe_saving(newest, launch.started_at, _asked_at(record) or end.signalled_at, ended_at, broken)
        say(saved)
    record.launch_ended(
        launch.number,
        exit_code=end.own_code,
        duration_s=ended_at - launch.started_at,
        stop_reason=reason,
        progress=newest.step if newest else None,
        step=read_step(_heartbeat(job, record, launch), _telling(log)),
        done=done,
        saved=saved,
        rank_exits=list(end.rank_exits),
        log_end=log.end or 0,
    )
    if not ours:
        _leave_to_others(job, seen, record)
        return None
    diagnosis = dataclasses.replace(_NO_FAILURE, sentence=end.stop.detail if end.stop else "")
    if (end.exit_code != 0 and reason is None) or reason == "metric":
        diagnosis = _diagnose(job, end, log, seen, _steps_made(record, newest.step if newest else None))
        diagnosis = _tell_failure(record, launch.number, diagnosis, reason)
    decision = decide_ending(
        record.read_run(),
        spec,
        diagnosis,
        exit_code=end.own_code,
        script_alive=True,
        stop_reason=reason,
        done=done,
        resumed_from=str(end.resumed_from) if end.resumed_from else None,
    )
    return _announce(with_breaker(job.run, spec, _not_in_place(decision, end, seen, spec), time.time()))


def _find_written(job: JobContext, end: LaunchEnd) -> tuple[Found | None, str]:
    """The newest checkpoint, and what a newer one lacks: a launch may have come to its end in the middle of a save."""
    if end.exit_code == 0:
        return find_newest(job.run.path, job.plan.spec.checkpoint), ""
    limit_s = _CHECK_S if end.stop is None else _HURRIED_CHECK_S
    return find_written(job.run.path, job.plan.spec.checkpoint, end.launch.started_at, limit_s)


def _leave_to_others(job: JobContext, seen: JobRecord | None, record: Record) -> None:
    if seen is not None:
        record.job_seen(seen)
    say(f"{_not_ours(job, seen)}: nothing is decided in this job")


def _tell_failure(record: Record, number: int, diagnosis: Diagnosis, reason: str | None) -> Diagnosis:
    if reason == "metric":  # the rule has spoken, also if later values would have been better
        diagnosis = dataclasses.replace(diagnosis, outcome="FailJob", retryable=False, action="stop")
    record.diagnosed(number, diagnosis)
    say(f"launch {number} failed: {diagnosis.sentence or diagnosis.cause}")
    return diagnosis


def _asked_at(record: Record) -> float | None:
    """When the launch was asked to save and leave."""
    launch = record.read_run().last_launch
    return launch.stop.at if launch is not None and launch.stop is not None else None


def _heartbeat(job: JobContext, record: Record, launch: LaunchProcess) -> Path:
    """The file in which the training may tell its step (``SLURMTRAIN_HEARTBEAT``)."""
    return job.run.attempt(record.attempt).launch(launch.number) / HEARTBEAT


def _announce(decision: Decision) -> Decision:
    say(f"decision: {decision.action.value} ({decision.reason})")
    return decision


def _not_in_place(decision: Decision, end: LaunchEnd, seen: JobRecord | None, spec: Spec) -> Decision:
    """Where the next srun would wait for its nodes for ever a requeue gives them all back.

    A person may make a running job smaller; and slurmctld holds what a step had whose slurmstepd died (22.05, tried).
    """
    if decision.action is not Action.RESTART_IN_PLACE:
        return decision
    budget = decision.budget
    if seen is not None and 0 < seen.node_count < spec.resources.nodes:
        why, budget = f"the job has only {seen.node_count} of {spec.resources.nodes} nodes left", "none"
    elif end.launch.unheard:
        why, budget = f"{end.launch.unheard}, and Slurm holds its step until the job ends", "infrastructure"
    else:
        return decision
    reason = f"{decision.reason}; {why}"
    return dataclasses.replace(decision, action=Action.REQUEUE, state=RunState.PENDING, budget=budget, reason=reason)


def _stop_reason(job: JobContext, end: LaunchEnd, seen: JobRecord | None, *, ours: bool) -> str | None:
    """Why the launch had to end; None where it ended by itself."""
    if known := _known_reason(job, end):
        return known
    if is_preempted(seen):
        return "preempted"
    return BY_SLURM if seen is not None and not ours else None


def _left_for_a_signal(end: LaunchEnd, newest: Found | None) -> bool:
    """Whether exit code 0 means "saved and left", as after `scancel -s USR2`: something was saved since the signal.

    Where the training had in truth finished it ends at once when it is started again.
    """
    asked_at = end.signalled_at
    if end.exit_code != 0 or asked_at is None or asked_at < end.launch.started_at or newest is None:
        return False
    return newest.modified >= asked_at - 1


def _known_reason(job: JobContext, end: LaunchEnd) -> str | None:
    """What the agent itself had asked the launch to end for."""
    return "user" if job.find_stop_request() is not None else end.stop.reason if end.stop is not None else None


def _not_ours(job: JobContext, seen: JobRecord | None) -> str:
    if seen is None:
        return f"Slurm does not say that job {job.job_id} runs"
    if seen.restart_count != job.restart_count:
        return f"job {job.job_id} has been requeued since"
    return f"for Slurm job {job.job_id} is {seen.state}"


def decide_between_launches(record: Record, spec: Spec, stop: StopReason) -> Decision:
    """A reason to stop came while no launch ran."""
    ending = Ending(
        cause=stop.reason,
        sentence=stop.detail,
        exit_code=None,
        script_alive=True,
        stop_reason=stop.reason,
        now=time.time(),
    )
    decision = decide(record.read_run(), ending, spec)
    say(f"decision: {decision.action.value} ({decision.reason})")
    return decision


def _log_of(launch: LaunchProcess) -> LogRange:
    """What the launch wrote; a log that somebody emptied meanwhile begins anew."""
    end = launch.log_end()
    start = launch.log_offset if launch.log_offset <= end else 0
    return LogRange(launch.log_file, start, end, launch.folder, launch.node_cuts)


def _telling(log: LogRange) -> list[tuple[Path, int, int | None]]:
    """The files of a launch that tell its step: rank 0 is on the first node, a pipeline's last stage on the last."""
    job, *nodes = log.parts()
    return [job, *nodes[:1], *nodes[1:][-1:]]


def _steps_made(record: Record, newest: int | None) -> int | None:
    """How many steps further the newest checkpoint is than the one that the launch began from; None if not known."""
    launch = record.read_run().last_launch
    if newest is None or launch is None or launch.started is None:
        return None
    return max(0, newest - (launch.started.progress or 0))


def _nodes_of(seen: JobRecord | None) -> tuple[str, ...]:
    with contextlib.suppress(ValueError):
        return tuple(expand_nodes(seen.nodes)) if seen is not None else ()
    return ()


def _diagnose(job: JobContext, end: LaunchEnd, log: LogRange, seen: JobRecord | None, steps: int | None) -> Diagnosis:
    kills, before = count_oom_kills(), end.launch.oom_kills_before
    allocated, visible = count_gpus(os.environ)
    facts = Facts(
        nnodes=seen.node_count or None if seen else None,
        nodes=_nodes_of(seen),
        elapsed_s=time.time() - seen.start_time.timestamp() if seen and seen.start_time else None,
        time_limit_s=seen.time_limit.total_seconds() if seen and seen.time_limit else None,
        oom_kill_events=kills - before if kills is not None and before is not None else None,
        allocated_gpus=allocated,
        visible_gpus=visible,
        step_progress=steps,
        last_progress_age_s=heartbeat_age(end.launch.folder),
        state="FAILED",
        exit_code=end.own_code,
        signal=next((e.signal for e in end.rank_exits[:1]), None),
        rank_exits=end.rank_exits,
        restarts=job.restart_count,
    )
    return diagnose_log(job.run, facts, log) if end.launch.silent_s is None else _diagnose_hang(job, end, facts, log)


def _diagnose_hang(job: JobContext, end: LaunchEnd, facts: Facts, log: LogRange) -> Diagnosis:
    """What the launch wrote before it fell silent may tell why; else the stacks tell who held it up."""
    silent_s = end.launch.silent_s
    facts = dataclasses.replace(facts, stop_sent="hang", last_output_age_s=silent_s, last_progress_age_s=silent_s)
    found = diagnose_log(job.run, facts, log)
    sentence, rank, node = explain_hang(end.launch, job.plan.spec)
    if found.cause != "hang_no_progress" or (not sentence and end.launch.nothing_new != "step"):
        return found
    words = f"No {end.launch.nothing_new} for {end.launch.silent_s:.0f} s"
    return dataclasses.replace(found, sentence=f"{words}: {sentence}" if sentence else words, rank=rank, node=node)


def culprit_code(code: int, exits: Sequence[RankExit]) -> int:
    """The exit code of the rank that ended first: srun's own is that of the peers it killed."""
    if code == 0 or not exits:
        return code
    first = min(exits, key=lambda e: e.order)
    if first.exit_code is not None:
        return first.exit_code
    return 128 + first.signal if first.signal is not None else code
