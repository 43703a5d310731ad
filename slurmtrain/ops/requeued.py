"""Judging an attempt that ended without a decision: Slurm requeued it by itself, or its script died.

What is asked, in this order: how Slurm says the execution ended, what the launch's log says, what the agent had noted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from slurmtrain.checkpoints.find import find_newest
from slurmtrain.core import events as ev
from slurmtrain.core.components import task_offsets
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import BaseState, StateFlag
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.policy import CONTINUES, decide_upload
from slurmtrain.core.run import Launch, Run, advance, find_attempt, fold
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmtrainError
from slurmtrain.logs.window import read_end
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.ops.fallback import fallback_of
from slurmtrain.ops.judge import LogRange, decide_ending, diagnose_log
from slurmtrain.ops.launch_exit import find_unrecorded_end
from slurmtrain.ops.outside_scene import begin_outside
from slurmtrain.slurm.client import AccountingRecord, SlurmClient
from slurmtrain.slurm.srun_messages import parse_rank_exits
from slurmtrain.store.journal import read_journal
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir, RunDir

_SLURMS_OWN = {
    "PREEMPTED": "Slurm preempted the job and queued it again",
    "NODE_FAIL": "Slurm lost a node of the job and queued it again",
}
_ENDED_BY_ITSELF = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY", "UNKNOWN", ""})
_MAX_LOG_FOR_EXITS = 4 << 20  # bytes from the end of a launch's output in which srun names the ended tasks


@dataclass(frozen=True, slots=True)
class SrunWords:
    """How tasks ended, in srun's order; and whether it gave up because of a node: it then exits 0 (22.05, tried)."""

    rank_exits: tuple[RankExit, ...]
    lost_a_node: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """A decision about an attempt and the events that led to it, in order, without the decision itself."""

    decision: Decision
    events: tuple[ev.Event, ...]


def judge_requeued_attempt(
    run: RunDir, spec: Spec, attempt: AttemptDir, slurm: SlurmClient, who: str = "gate"
) -> Judged:
    """A later execution exists, so Slurm (or a person) requeued this one, whatever else is known.

    Only a program that had failed for good before that keeps the new attempt out.
    """
    record = find_execution(run, attempt, slurm)
    word = _requeue_word(record)
    state, found = _with_unrecorded_end(fold(read_journal(run.journal)), attempt, word, who)
    ended = _ended_event(run, spec, attempt, record, word, who)
    launch = _last_launch(state, attempt)
    if word in {"PREEMPTED", "NODE_FAIL"} or launch is None or not _failed_for_good(launch):
        judged = _judge_by_word(state, spec, attempt, word, ended)
    else:
        judged = judge_ended_attempt(run, spec, attempt, record, state, who=who)
    return Judged(judged.decision, (*found, *judged.events))


def _with_unrecorded_end(state: Run, attempt: AttemptDir, word: str, who: str) -> tuple[Run, tuple[ev.Event, ...]]:
    """The run with the end of the last launch, and that end where only a file tells of it.

    Where Slurm ended the execution (``word``), a launch that left with exit code 0 may have left for that.
    """
    end = find_unrecorded_end(state, attempt, who)
    if end is None:
        return state, ()
    if end.stop_reason is None and word not in _ENDED_BY_ITSELF:
        end = replace(end, stop_reason="slurm")
    return advance(state, end), (end,)


def settle_earlier(run: RunDir, spec: Spec, before: int, slurm: SlurmClient, who: str) -> list[ev.Event]:
    """Decide about all attempts before this number that ended without a decision: a later execution has begun since.

    The events that belong into the journal. Raises ``StoreError``.
    """
    written: list[ev.Event] = []
    for attempt in run.read_attempts():
        if attempt.number < before and attempt.read_decision() is None:
            begin_outside(run, spec, attempt, str((attempt.read_owner() or {}).get("job_id", "")))
            judged = judge_requeued_attempt(run, spec, attempt, slurm, who)
            if publish_decision(attempt, judged.decision, who):
                written += [*judged.events, build_decided(attempt.number, judged.decision, who)]
    return written


def _failed_for_good(launch: Launch) -> bool:
    """It ended by itself, and it had not been decided that it is started again."""
    return launch.ended is not None and launch.ended.stop_reason is None and launch.decision is None


def judge_ended_attempt(
    run: RunDir,
    spec: Spec,
    attempt: AttemptDir,
    record: AccountingRecord | None,
    state: Run,
    word: str | None = None,
    exit_code: int | None = None,
    who: str = "watcher",
) -> Judged:
    """For an attempt whose script is dead: facts of Slurm and the last launch's log, then the ladder."""
    word = word or (str(record.state) if record else "")
    ended = _ended_event(run, spec, attempt, record, word, who, exit_code)
    state, left = _with_unrecorded_end(state, attempt, ended.state, who)
    launch = _last_launch(state, attempt)
    log = launch_log(run, attempt, state, launch)
    facts = _facts(record, ended, launch, _rank_exits(log, spec, attempt))
    diagnosis = diagnose_log(run, facts, log)
    found = ev.Diagnosed(
        at=time.time(), who=ended.who, attempt=attempt.number, diagnosis=diagnosis.to_dict(), launch=-1
    )
    state = advance(advance(state, ended), found)
    decision = decide_ending(
        state,
        spec,
        diagnosis,
        exit_code=_exit_code(ended, launch),
        script_alive=False,
        stop_reason=_stop_reason(launch) if launch else _stop_without_agent(run, attempt),
        done=run.is_done(),
        resumed_from=launch.started.resume_from if launch and launch.started else None,
    )
    if decision.action is Action.COMPLETE and run.misses_upload(spec):
        run.mark_done(attempt.number)
        decision = decide_upload(state, diagnosis.cause, spec)
    return Judged(decision, (*left, ended, found))


def _stop_reason(launch: Launch | None) -> str | None:
    """Why the launch was asked to end, or was ended by Slurm: its exit code 0 is no success then."""
    if launch is None:
        return None
    if launch.stop is not None:
        return launch.stop.reason
    return launch.ended.stop_reason if launch.ended else None


def _stop_without_agent(run: RunDir, attempt: AttemptDir) -> str | None:
    """The batch script knows of one reason only: Slurm's warning before the time limit."""
    fallback = fallback_of(run, attempt)
    return "time_limit" if fallback is not None and fallback.stop_sent else None


def launch_log(run: RunDir, attempt: AttemptDir, state: Run, launch: Launch | None) -> LogRange | None:
    """The bytes of the job's log that the last launch of an attempt wrote."""
    owner = attempt.read_owner() or {}
    path = run.log_file(str(owner.get("job_id", "")))
    if launch is None or launch.started is None:
        return LogRange(path) if exists(path) else None
    end = launch.ended.log_end if launch.ended else _next_offset(state, attempt)
    return LogRange(path, launch.started.log_offset, end or None, attempt.launch(launch.number))


def _next_offset(state: Run, attempt: AttemptDir) -> int | None:
    """Where the attempt after this one began to write into the same log."""
    own = (find_attempt(state, attempt.number), find_attempt(state, attempt.number + 1))
    if own[1] is None or own[0] is None or not own[1].launches or own[1].launches[0].started is None:
        return None
    same_job = own[0].started and own[1].started and own[0].started.job_id == own[1].started.job_id
    return own[1].launches[0].started.log_offset if same_job else None


def find_execution(run: RunDir, attempt: AttemptDir, slurm: SlurmClient) -> AccountingRecord | None:
    """The accounting row of an attempt; None without accounting, or where the row cannot be told."""
    owner = attempt.read_owner()
    if owner is None:
        return None
    try:
        job_id: JobId = parse_job_id(str(owner["job_id"]))
        rows = [row for row in slurm.history([job_id]) if row.job_id == job_id]
    except (SlurmtrainError, ValueError, KeyError):
        return None
    restart = int(owner.get("restart_count", 0))
    return rows[restart] if restart < len(rows) else None


def _requeue_word(record: AccountingRecord | None) -> str:
    if record is None:
        return ""
    if StateFlag.REQUEUED in record.state.flags:
        return "REQUEUED"
    return record.state.base.value if record.state.base else ""


def _judge_by_word(state: Run, spec: Spec, attempt: AttemptDir, word: str, ended: ev.AttemptEnded) -> Judged:
    """Slurm took the job out of the training's hands and queued it again: it goes on, whatever the log looks like.

    A training that was asked to leave and requeued the job itself (Lightning, submitit) left for what it was asked for.
    """
    launch = _last_launch(state, attempt)
    asked = launch.stop.reason if launch is not None and launch.stop is not None else None
    asked = asked if asked in CONTINUES and word not in _SLURMS_OWN else None
    cause = "time_limit" if asked == "time_limit" else "node_fail" if word == "NODE_FAIL" else "preempted"
    sentence = _SLURMS_OWN.get(word, "the job was requeued by its training or by a person, not by slurmtrain")
    if asked is not None:
        sentence = f"asked to save and leave ({asked}), the training requeued the job itself"
    diagnosis = Diagnosis(cause, "scheduler", True, "requeue", confidence=0.9 if word else 0.5, sentence=sentence)
    found = ev.Diagnosed(at=time.time(), who=ended.who, attempt=attempt.number, diagnosis=diagnosis.to_dict())
    after = advance(advance(state, ended), found)
    decision = decide_ending(after, spec, diagnosis, exit_code=None, script_alive=False, stop_reason=asked)
    if decision.action is Action.RESTART_IN_PLACE:  # cannot be: the script is gone
        decision = Decision(Action.REQUEUE, RunState.PENDING, cause, sentence)
    elif decision.action is Action.REQUEUE and word not in _SLURMS_OWN:
        decision = replace(decision, reason=f"{sentence}: goes on from its checkpoint")
    return Judged(decision, (ended, found))


def _last_launch(state: Run, attempt: AttemptDir) -> Launch | None:
    known = find_attempt(state, attempt.number)
    return known.launches[-1] if known and known.launches else None


def _ended_event(
    run: RunDir, spec: Spec, attempt: AttemptDir, record: AccountingRecord | None, word: str, who: str,
    exit_code: int | None = None,
) -> ev.AttemptEnded:  # fmt: skip
    owner = attempt.read_owner() or {}
    newest = find_newest(run.path, spec.checkpoint)
    return ev.AttemptEnded(
        at=time.time(),
        who=who,
        attempt=attempt.number,
        job_id=str(owner.get("job_id", "")),
        state=word or "UNKNOWN",
        reason=record.reason if record else "",
        exit_code=record.exit_code if record else exit_code,
        signal=record.signal if record else None,
        cancelled_by=record.cancelled_by if record else None,
        progress=newest.step if newest else None,
    )


def _facts(
    record: AccountingRecord | None, ended: ev.AttemptEnded, launch: Launch | None, exits: tuple[RankExit, ...]
) -> Facts:
    word = ended.state if ended.state in BaseState.__members__ else None
    by_itself = launch is None or launch.ended is None or launch.ended.stop_reason is None
    if word is None and launch is not None and launch.ended is not None and by_itself:
        word = "FAILED" if launch.ended.exit_code else None
    elapsed = _elapsed(record)
    # What Slurm or a person ended has an exit code that says nothing: then only the log tells who it was.
    launch_code = launch.ended.exit_code if launch and launch.ended and (by_itself or word) else None
    return Facts(
        state=word,
        reason=ended.reason,
        exit_code=ended.exit_code if ended.exit_code is not None and (by_itself or word) else launch_code,
        signal=ended.signal,
        derived_exit_code=record.derived_exit_code if record else None,
        elapsed_s=elapsed.total_seconds() if elapsed else None,
        time_limit_s=record.time_limit.total_seconds() if record and record.time_limit else None,
        step_states=tuple(str(step.state) for step in record.steps) if record else (),
        nodes=_nodes_of(record),
        nnodes=len(_nodes_of(record)) or None,
        rank_exits=exits,
        stop_sent=launch.stop.reason if launch and launch.stop else None,
        cancelled_by=str(ended.cancelled_by) if ended.cancelled_by is not None else None,
    )


def _nodes_of(record: AccountingRecord | None) -> tuple[str, ...]:
    try:
        return tuple(expand_nodes(record.nodes)) if record is not None else ()
    except ValueError:
        return ()


def _elapsed(record: AccountingRecord | None) -> timedelta | None:
    if record is None or record.start_time is None or record.end_time is None:
        return None
    return record.end_time - record.start_time


def _exit_code(ended: ev.AttemptEnded, launch: Launch | None) -> int | None:
    """The launch's own exit code, or the batch script's as a shell shows it; None where neither is known.

    A script that was killed has exit code 0 beside its signal, and a row can be half written (FAILED with 0): only
    COMPLETED makes a 0 of Slurm's mean success.
    """
    if launch is not None and launch.ended is not None:
        return launch.ended.exit_code
    if ended.signal:
        return 128 + ended.signal
    return None if ended.exit_code == 0 and ended.state != "COMPLETED" else ended.exit_code


def _rank_exits(log: LogRange | None, spec: Spec, attempt: AttemptDir) -> tuple[RankExit, ...]:
    nodes = str((attempt.read_owner() or {}).get("nodes", ""))
    return read_srun_words(log, task_offsets(spec, nodes)).rank_exits if log is not None else ()


def read_srun_words(log: LogRange, offsets: Mapping[str, int] | None = None) -> SrunWords:
    """What srun said at the end of a launch's output; ``offsets`` as for ``parse_rank_exits``."""
    lines = _read_tail(log).splitlines()
    lost = any(line.startswith("srun: error: Node failure on ") for line in lines)
    return SrunWords(tuple(parse_rank_exits(lines, offsets)), lost)


def _read_tail(log: LogRange) -> str:
    try:
        return read_end(log.path, log.start, log.end, _MAX_LOG_FOR_EXITS)[0].decode("utf-8", "replace")
    except OSError:
        return ""
