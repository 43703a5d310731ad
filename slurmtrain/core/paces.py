"""How fast each rank makes steps, and which one is consistently slower than the others: a straggler, no hang.

In synchronous training all ranks make the same number of steps in the same time, for all wait for the slowest. There
only the time tells that a rank itself works in a step (``busy_s``); elsewhere the steps do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

FAR_ABOVE = 2.0  # times what the others need
_LEAST_S = 0.01  # a difference below it is none
_BEHIND_S, _BEHIND_STEPS = 10.0, 3  # ranks say where they are once a second


@dataclass(frozen=True, slots=True)
class Pace:
    """Where one rank was. Times are seconds since the epoch, by its node's clock."""

    rank: int
    node: str
    step: int
    at: float  # when it said so
    seen_at: float  # when its node looked: up to then it had said nothing newer
    step_s: float | None = None  # seconds for one step, lately
    busy_s: float | None = None  # of them at work itself, without waiting for others


@dataclass(frozen=True, slots=True)
class Straggler:
    """``why`` completes a sentence that begins with the rank."""

    rank: int
    node: str
    why: str

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.node} {self.why}"


def find_stragglers(paces: Sequence[Pace]) -> list[Straggler]:
    """The ranks that are slower than the others; at most a third of them, for many slow ones are the usual case."""
    if len(paces) < 2:
        return []
    busy = all(pace.busy_s is not None for pace in paces)
    found = [one for pace in paces if (one := _slow(pace, paces, busy=busy) or _behind(pace, paces)) is not None]
    return sorted(found, key=lambda one: one.rank) if len(found) <= max(1, len(paces) // 3) else []


def find_last(steps: Mapping[int, int]) -> tuple[int, int, int] | None:
    """(rank, its step, the step of the others) of the one rank that made fewer steps than all others, if there is."""
    if len(steps) < 2:
        return None
    (rank, step), (_, next_step) = sorted(steps.items(), key=lambda item: item[1])[:2]
    return (rank, step, max(steps.values())) if step < next_step else None


def _slow(pace: Pace, paces: Sequence[Pace], *, busy: bool) -> Straggler | None:
    times = {one.rank: one.busy_s if busy else one.step_s for one in paces}
    own = times.pop(pace.rank, None)
    others = [value for value in times.values() if value is not None]
    if own is None or not others or own <= FAR_ABOVE * median(others) or own - median(others) < _LEAST_S:
        return None
    what = "at work in a step" if busy else "for a step"
    return Straggler(pace.rank, pace.node, f"is slow: {own:.3g} s {what}, the others {median(others):.3g} s")


def _behind(pace: Pace, paces: Sequence[Pace]) -> Straggler | None:
    others = [one for one in paces if one.rank != pace.rank]
    front = median(_step_at(one, pace.seen_at) for one in others)
    times = [one.step_s for one in others if one.step_s]
    step_s = median(times) if times else 0.0
    behind = front - pace.step
    if behind < _BEHIND_STEPS or behind * step_s < max(_BEHIND_S, _BEHIND_STEPS * step_s):
        return None
    return Straggler(pace.rank, pace.node, f"is behind: at step {pace.step} when the others were at {front:.0f}")


def _step_at(pace: Pace, when: float) -> float:
    """At least so far the rank was at that moment; after the last look at it nothing is assumed."""
    if when >= pace.at or not pace.step_s:
        return float(pace.step)
    return pace.step - (pace.at - when) / pace.step_s
