"""The ladder: what to do about a launch or an attempt that ended. Restart in place → requeue → hold for a person.

A cause names its first rung. The same cause twice in a row without progress climbs one rung at once. Ceilings and
budgets bound every rung; preemption and the time limit use none, because they are no failures.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurmtrain.core.budget import (
    allocated_gpus,
    count_in_place,
    count_requeues,
    deadline_at,
    retry_for,
    retry_hours,
)
from slurmtrain.core.causes import CAUSES, Cause
from slurmtrain.core.decision import RETRIES, Action, Budget, Decision, RunState
from slurmtrain.core.run import Attempt, Launch, Run
from slurmtrain.core.spec import Retry, Spec

DO_NOT_RETRY = 93  # a training that exits with this asks not to be tried again
CONTINUES = frozenset({"time_limit", "preempted", "drain", "maintenance"})  # stops after which the run goes on
MIN_SUSPICION = 0.5  # below it a node stays in

_IN_PLACE, _REQUEUE, _HOLD, _STOP = range(4)
_RUNG_OF_ACTION = {Action.RESTART_IN_PLACE: _IN_PLACE, Action.REQUEUE: _REQUEUE}
_FIRST_RUNG = {
    "in_place": _IN_PLACE,
    "rollback": _IN_PLACE,
    "requeue": _REQUEUE,
    "requeue_exclude": _REQUEUE,
    "hold": _HOLD,
}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a launch ended (or an attempt, where nobody saw the launch end), and what was found about it.

    ``script_alive`` says whether the batch script is still there to restart in place. ``suspects`` are
    (node, confidence) pairs.
    """

    cause: str
    sentence: str
    exit_code: int | None
    script_alive: bool
    stop_reason: str | None = None
    done: bool = False
    suspects: tuple[tuple[str, float], ...] = ()
    action: str | None = None  # what the diagnosis advises, where it overrides the cause's default
    outcome: str | None = None  # of a rule of the user's: FailJob, Ignore, Count
    resumed_from: str | None = None
    now: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed launch or attempt of the past."""

    cause: str
    node: str | None
    progressed: bool
    rung: int | None


def decide(run: Run, ending: Ending, spec: Spec) -> Decision:
    """The decision about the newest launch of ``run``, whose end is ``ending``."""
    settled = _decide_without_ladder(run, ending, spec.retry)
    decision = settled if settled is not None else _climb(run, ending, spec)
    return _within_caps(run, ending, spec, decision)


def _within_caps(run: Run, ending: Ending, spec: Spec, decision: Decision) -> Decision:
    """Above all rungs: no retry after the deadline, and none once retries have cost as much as they may."""
    if decision.action not in RETRIES:
        return decision
    why, end, limit = "", deadline_at(spec.retry.deadline, run), spec.retry.max_gpu_hours
    if end is not None and ending.now + decision.delay_s >= end:
        why = f"the run's deadline ({spec.retry.deadline}) has come"
    elif limit is not None and decision.budget != "none" and (cost := retry_hours(run, spec.resources)) >= limit:
        why = f"retries have cost {cost:.1f} {allocated_gpus(spec.resources)[1]}, and {limit:g} are as many as they may"
    if not why:
        return decision
    said = decision.reason.split(";")[0]
    return _end_of_the_ladder(decision.cause, f"{said}; {why}", decision.budget, spec.retry)


def _end_of_the_ladder(cause: str, reason: str, budget: Budget, retry: Retry) -> Decision:
    """A person is asked, unless the job says that for this cause nobody need be."""
    if retry.causes.get(cause, {}).get("hold") is False:
        return Decision(Action.STOP, RunState.FAILED, cause, reason, budget)
    return Decision(Action.HOLD, RunState.HELD, cause, reason, budget)


def _decide_without_ladder(run: Run, ending: Ending, retry: Retry) -> Decision | None:
    if ending.done:
        return Decision(Action.COMPLETE, RunState.COMPLETED, "no_failure", "the training said that it has finished")
    if ending.stop_reason == "user":
        return Decision(Action.STOP, RunState.STOPPED, "user_cancelled", "a person asked the run to stop")
    if ending.cause == "user_cancelled":
        return Decision(Action.LEAVE, RunState.STOPPED, "user_cancelled", ending.sentence or "the job was cancelled")
    reason = ending.stop_reason if ending.stop_reason in CONTINUES else ending.cause
    if reason in CONTINUES:
        return _continue(run, ending, reason, retry)
    if ending.stop_reason == "signal":
        return _start_again(ending)
    if ending.exit_code == 0 and ending.stop_reason is None:
        return Decision(Action.COMPLETE, RunState.COMPLETED, "no_failure", "every rank ended with exit code 0")
    if ending.exit_code == DO_NOT_RETRY:
        return _stop(ending, f"the training exited with {DO_NOT_RETRY}: do not try again")
    if ending.outcome == "FailJob":
        return _stop(ending, f"a rule of yours ends the run: {ending.sentence}")
    return None


def _start_again(ending: Ending) -> Decision:
    """Somebody signalled the training's steps, and it saved and left; nothing wants the nodes."""
    reason = "a signal that was not slurmtrain's made the training save and leave: goes on from its checkpoint"
    if ending.script_alive:
        return Decision(Action.RESTART_IN_PLACE, RunState.RUNNING, "no_failure", reason)
    return Decision(Action.REQUEUE, RunState.PENDING, "no_failure", reason)


def _continue(run: Run, ending: Ending, reason: str, retry: Retry) -> Decision:
    state = RunState.PREEMPTED if reason == "preempted" else RunState.PENDING
    words = {
        "time_limit": "the time limit came: goes on from its checkpoint",
        "preempted": "Slurm gave the nodes to another job: goes on from its checkpoint",
        "drain": f"{ending.sentence or 'a node drains'}: goes on elsewhere",
        "maintenance": f"{ending.sentence or 'a maintenance comes'}: goes on elsewhere, or afterwards",
    }
    if len(run.attempts) >= retry.attempts:
        return Decision(Action.HOLD, RunState.HELD, reason, f"{len(run.attempts)} attempts are as many as it may have")
    return Decision(Action.REQUEUE, state, reason, words.get(reason, f"{reason}: goes on elsewhere"))


def decide_upload(run: Run, cause: str, spec: Spec) -> Decision:
    """The training has finished, and its script died before ``stage_out`` had: only that is done again."""
    rung, why = _within_budget(run, cause, "infrastructure", spec.retry, "only that is done again")
    reason = f"the training has finished, but its stage_out was cut off; {why}"
    if rung == _REQUEUE:
        return Decision(Action.REQUEUE, RunState.PENDING, cause, reason, "infrastructure")
    return Decision(Action.HOLD, RunState.HELD, cause, f"{reason}; a release tries it again", "infrastructure")


def _climb(run: Run, ending: Ending, spec: Spec) -> Decision:
    retry = retry_for(spec.retry, ending.cause)
    cause = CAUSES.get(ending.cause, CAUSES["unknown"])
    ending = dataclasses.replace(ending, sentence=(ending.sentence or cause.summary).rstrip(" ."))
    own = retry.causes.get(cause.name, {}).get("first")
    if own == "stop" or (own is None and (cause.first_rung == "stop" or ending.action == "stop")):
        return _stop(ending, f"{ending.sentence}: no retry can cure this")
    if cause.first_rung == "rollback" and not ending.resumed_from and cause.name == "checkpoint_corrupt":
        return _stop(ending, f"{ending.sentence}, and there is no checkpoint of ours to go back from")
    past = list(failures(run))
    rung, why = _rung(run, ending, cause, past, retry)
    budget: Budget = "none" if ending.outcome == "Ignore" else "infrastructure" if cause.infrastructure else "program"
    if rung == _REQUEUE:
        rung, why = _within_budget(run, cause.name, budget, retry, why)
    if rung == _STOP:
        return _stop(ending, f"{ending.sentence}; retries are switched off")
    if rung == _HOLD:
        return _end_of_the_ladder(cause.name, f"{ending.sentence}; {why}", budget, retry)
    return Decision(
        action=Action.RESTART_IN_PLACE if rung == _IN_PLACE else Action.REQUEUE,
        state=RunState.RUNNING if rung == _IN_PLACE else RunState.PENDING,
        cause=cause.name,
        reason=f"{ending.sentence}; {why}",
        budget=budget,
        exclude=_nodes_to_avoid(ending, cause, past, retry) if rung == _REQUEUE else (),
        delay_s=_delay(run, retry) if any(f.cause == cause.name for f in past[:-1]) else 0,
        rollback=cause.first_rung == "rollback" and (ending.resumed_from is not None or _has_saved(run)),
    )


def _has_saved(run: Run) -> bool:
    launch = run.last_launch
    return launch is not None and launch.ended is not None and launch.ended.progress is not None


def rolled_back_in_vain(run: Run) -> bool:
    """Whether the newest launch came no further than an earlier one that was rolled back: then further this time."""
    launches = [(attempt, launch) for attempt in run.attempts for launch in attempt.launches]
    reached = [_reach(launch) for attempt, launch in launches[:-1] if _was_rolled_back(attempt, launch)]
    return bool(reached) and _reach(launches[-1][1]) <= max(reached)


def _was_rolled_back(attempt: Attempt, launch: Launch) -> bool:
    decision = _decision_after(attempt, launch)
    return decision is not None and decision.rollback


def _decision_after(attempt: Attempt, launch: Launch) -> Decision | None:
    return launch.decision or (attempt.decision if launch is attempt.launches[-1] else None)


def _reach(launch: Launch) -> int:
    """The highest step that is known of it; 0 where none is."""
    ended = launch.ended
    return max(ended.step or 0, ended.progress or 0) if ended else 0


def _delay(run: Run, retry: Retry) -> int:
    """``delay_s`` and up to a quarter more, another one for each run and try, so that runs that failed together do not
    come back together; the same whoever computes it."""
    created = f"{run.created.at}{run.created.user}" if run.created else ""
    seed = f"{created} {run.job_id} {len(run.attempts)} {sum(len(a.launches) for a in run.attempts)}"
    return retry.delay_s + zlib.crc32(seed.encode()) % (retry.delay_s // 4 + 1)


def _rung(run: Run, ending: Ending, cause: Cause, past: list[Failure], retry: Retry) -> tuple[int, str]:
    first = retry.causes.get(cause.name, {}).get("first", cause.first_rung)
    rung, why = _FIRST_RUNG.get(first, _IN_PLACE), "a retry may help"
    current, before = (past[-1], past[-2]) if len(past) > 1 else (None, None)
    if current and before and current.cause == before.cause and not current.progressed and before.rung is not None:
        rung, why = max(rung, before.rung + 1), "the same again without progress"
    if rung == _IN_PLACE:
        restarts = count_in_place(run, retry, cause.name)
        if restarts >= retry.in_place:
            rung, why = _REQUEUE, f"{restarts} restarts in place are as many as one attempt may have"
        elif not ending.script_alive:
            rung, why = _REQUEUE, "the allocation is gone"
    return rung, why


def _within_budget(run: Run, cause: str, budget: Budget, retry: Retry, why: str) -> tuple[int, str]:
    used = count_requeues(run, retry, budget, cause)
    allowed = {"program": retry.requeues, "infrastructure": retry.infrastructure}.get(budget)
    if len(run.attempts) >= retry.attempts:
        return _HOLD, f"{len(run.attempts)} attempts are as many as it may have"
    if allowed is not None and used >= allowed:
        if allowed == 0 and retry.in_place == 0:
            return _STOP, "retries are switched off"
        return _HOLD, f"{used} requeues are as many as a failure of this kind may have"
    return _REQUEUE, why


def _nodes_to_avoid(ending: Ending, cause: Cause, past: list[Failure], retry: Retry) -> tuple[str, ...]:
    if not retry.exclude_nodes:
        return ()
    suspects = [node for node, confidence in ending.suspects if confidence >= MIN_SUSPICION]
    repeated = len(past) > 1 and past[-2].cause == cause.name and past[-2].node == past[-1].node
    node = past[-1].node if past else None
    if node and repeated and node not in suspects:
        suspects.append(node)  # twice the same on one node: try another before a person is asked
    return tuple(dict.fromkeys(suspects))


def failures(run: Run) -> Iterator[Failure]:
    """Failed launches, and attempts that failed without a launch that told why, oldest first.

    A launch made progress where it left a newer checkpoint than it began with, or came to a higher step than any launch
    before it. What nobody knows is none.
    """
    best: int | None = None
    for attempt in run.attempts:
        for launch in attempt.launches:
            failure = _failure_of_launch(attempt, launch, best)
            if failure is not None:
                yield failure
            step = launch.ended.step if launch.ended else None
            best = max((s for s in (best, step) if s is not None), default=None)
        if attempt.diagnosis is not None:
            yield _failure(attempt.diagnosis, progressed=_came_further(attempt), decision=attempt.decision)


def _came_further(attempt: Attempt) -> bool:
    """Whether an attempt whose end was seen from outside left a newer checkpoint than its last launch began with."""
    after = attempt.ended.progress if attempt.ended else None
    launch = attempt.launches[-1] if attempt.launches else None
    before = launch.started.progress if launch and launch.started else None
    return launch is not None and after is not None and (before is None or after > before)


def _failure_of_launch(attempt: Attempt, launch: Launch, best: int | None) -> Failure | None:
    if launch.diagnosis is None or (launch.ended is not None and launch.ended.stop_reason is not None):
        return None
    before = launch.started.progress if launch.started else None
    after, step = (launch.ended.progress, launch.ended.step) if launch.ended else (None, None)
    newer = after is not None and (before is None or after > before)
    higher = step is not None and (best is None or step > best)
    decision = _decision_after(attempt, launch)
    exits = launch.ended.rank_exits if launch.ended else ()
    return _failure(launch.diagnosis, progressed=newer or higher, decision=decision, node=first_node(exits))


def first_node(rank_exits: Sequence[Mapping[str, Any]]) -> str | None:
    """The node of the rank that ended first, where srun named one."""
    first = min(rank_exits, key=lambda e: int(e.get("order", 0)), default=None)
    return str(first["node"]) if first and first.get("node") else None


def _failure(
    diagnosis: Mapping[str, Any], *, progressed: bool, decision: Decision | None, node: str | None = None
) -> Failure:
    rung = _RUNG_OF_ACTION.get(decision.action) if decision else None
    return Failure(str(diagnosis.get("cause", "unknown")), diagnosis.get("node") or node, progressed, rung)


def _stop(ending: Ending, reason: str) -> Decision:
    return Decision(Action.STOP, RunState.FAILED, ending.cause, reason)
