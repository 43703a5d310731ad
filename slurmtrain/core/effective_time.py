"""Where a run's time went: waiting, starting, training that was kept, training that was lost, and what it suggests.

A launch's work is kept as far as the newest checkpoint that it wrote and that no later launch fell behind. The times
are the journal's, so they are only as right as the clocks of the hosts that wrote it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from slurmtrain.core.decision import RunState
from slurmtrain.core.run import Attempt, Launch, Run


class Use(Enum):
    """What a stretch of time was used for."""

    WAITING = "waiting"  # no nodes: in the queue, or while Slurm cleaned up
    HELD = "held"  # waits for a person
    STARTING = "starting"  # nodes, but no launch yet: companions, stage_in
    RESTARTING = "restarting"  # nodes, between two launches or while the attempt left
    KEPT = "kept"  # trained, and a checkpoint has it
    LOST = "lost"  # trained, and had to be done again
    OPEN = "open"  # training now: not known yet
    UNKNOWN = "unknown"  # trained; how much of it a checkpoint has cannot be told


_LONGEST_S = 1e10  # what is longer is no time but nonsense in a journal
TRAINING = frozenset({Use.KEPT, Use.LOST, Use.OPEN, Use.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, in seconds since the epoch. ``launch`` is -1 outside of launches."""

    use: Use
    start: float
    end: float
    attempt: int
    launch: int = -1
    estimated: bool = False  # the border between kept and lost was computed from steps

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class EffectiveTime:
    """All spans in order and what they add up to.

    ``failure_every_s`` is the training time for each failure, ``save_every_s`` the usual time between two checkpoints,
    ``save_s`` how long writing one takes; None where it was not measured. ``suggested_s`` is Young's interval,
    sqrt(2 · save_s · failure_every_s) (Young 1974; Daly 2006 gives the same to first order).
    """

    spans: tuple[Span, ...] = ()
    failures: int = 0
    failure_every_s: float | None = None
    save_every_s: float | None = None
    save_s: float | None = None
    suggested_s: float | None = None

    @property
    def totals(self) -> Mapping[Use, float]:
        """Seconds by use; uses that did not occur are absent."""
        found: dict[Use, float] = {}
        for span in self.spans:
            found[span.use] = found.get(span.use, 0.0) + span.seconds
        return found

    @property
    def whole_s(self) -> float:
        return sum(span.seconds for span in self.spans)


_Known = tuple[Sequence[float], Mapping[tuple[int, int], "_Ahead"]]  # times of checkpoints; what came after launches


def measure_time(run: Run, now: float, *, saved_at: Sequence[float] = (), save_s: float | None = None) -> EffectiveTime:
    """The run's time. ``saved_at`` are the times at which checkpoints that still exist were written."""
    saves = sorted(saved_at)
    spans = tuple(span for span in _spans(run, now, saves) if 0 < span.seconds < _LONGEST_S)
    failures = sum(_has_failed(attempt, launch) for attempt in run.attempts for launch in attempt.launches)
    trained = sum(span.seconds for span in spans if span.use in TRAINING)
    every = trained / failures if failures and trained else None
    return EffectiveTime(
        spans=spans,
        failures=failures,
        failure_every_s=every,
        save_every_s=_usual_gap(saves, spans),
        save_s=save_s,
        suggested_s=math.sqrt(2 * save_s * every) if save_s and every else None,
    )


@dataclass(frozen=True, slots=True)
class _Ahead:
    """``back`` is the lowest step from which a later launch began, ``elsewhere`` that the next one resumed from another
    checkpoint: then this launch wrote it.
    """

    back: int | None
    elsewhere: bool


def _has_failed(attempt: Attempt, launch: Launch) -> bool:
    if launch.ended is None:
        return launch is attempt.launches[-1] and attempt.diagnosis is not None
    return launch.diagnosis is not None and launch.ended.stop_reason is None


def _spans(run: Run, now: float, saves: Sequence[float]) -> Iterator[Span]:
    begun = [attempt for attempt in run.attempts if attempt.started is not None]
    ahead = _look_ahead(run)
    free_at = run.created.at if run.created is not None else None
    for position, attempt in enumerate(begun):
        started = attempt.started.at if attempt.started else 0.0
        after = begun[position + 1].started if position + 1 < len(begun) else None
        limit = after.at if after is not None else now
        if free_at is not None:
            yield Span(Use.WAITING, min(free_at, started), started, attempt.number)
        free_at = started
        for span in _spans_of(run, attempt, limit, (saves, ahead), is_last=after is None):
            yield span
            free_at = span.end
    if free_at is not None and not run.ended and not (begun and _is_running(begun[-1])):
        use = Use.HELD if run.state is RunState.HELD else Use.WAITING
        yield Span(use, free_at, now, begun[-1].number if begun else -1)


def _is_running(attempt: Attempt) -> bool:
    return attempt.ended is None and attempt.decision is None


def _spans_of(run: Run, attempt: Attempt, limit: float, known: _Known, *, is_last: bool) -> Iterator[Span]:
    """What an attempt did with its nodes, until ``limit`` at most."""
    at = attempt.started.at if attempt.started else limit
    for launch in attempt.launches:
        if launch.started is None:
            continue
        start = min(max(at, launch.started.at), limit)
        between = Use.STARTING if launch is attempt.launches[0] else Use.RESTARTING
        yield Span(between, at, start, attempt.number)
        running = is_last and launch is attempt.launches[-1] and launch.ended is None and _is_running(attempt)
        at = max(start, min(limit, limit if running else _end_of(attempt, launch, limit)))
        yield from _split(run, attempt, launch, (start, at), known, running=running)
    left = [acted.leaves_at or acted.at for acted in attempt.acted if acted.who == "agent"]
    if attempt.decision is not None and attempt.decided_by == "agent":
        left.append(attempt.decided_at)
    end = limit if is_last and _is_running(attempt) and not run.ended else min(limit, max(left, default=at))
    if end > at:
        yield Span(Use.RESTARTING if attempt.launches else Use.STARTING, at, end, attempt.number)


def _end_of(attempt: Attempt, launch: Launch, limit: float) -> float:
    """When a launch ended; where nobody saw it, when somebody noticed."""
    if launch.ended is not None:
        return launch.ended.at
    noticed = [attempt.ended.at if attempt.ended else 0.0, attempt.decided_at]
    return min((at for at in noticed if at > 0), default=limit)


def _split(
    run: Run, attempt: Attempt, launch: Launch, span: tuple[float, float], known: _Known, *, running: bool
) -> Iterator[Span]:
    """A launch's time: until its last checkpoint, and what came after that."""
    start, end = span
    kept_until, estimated = _kept_until(run, attempt, launch, span, known)
    if kept_until is None:
        yield Span(Use.OPEN if running else Use.UNKNOWN, start, end, attempt.number, launch.number)
        return
    yield Span(Use.KEPT, start, kept_until, attempt.number, launch.number, estimated)
    yield Span(Use.OPEN if running else Use.LOST, kept_until, end, attempt.number, launch.number, estimated)


def _kept_until(
    run: Run, attempt: Attempt, launch: Launch, span: tuple[float, float], known: _Known
) -> tuple[float | None, bool]:
    """Until when its work was kept (None: cannot be told), and whether that is an estimate."""
    start, end = span
    saves, ahead = known[0], known[1][attempt.number, launch.number]
    if _finished(run, launch):
        return end, False
    before, after = _progress(launch)
    if ahead.back is not None and after is not None and ahead.back < after:
        return (start, False) if ahead.back <= (before or 0) else (None, False)
    last = bisect_right(saves, end) - 1
    if last >= 0 and saves[last] >= start:
        return saves[last], False
    if launch.ended is None:
        return None, False
    if after is None or (before is not None and after <= before):
        return (None, False) if after is None and ahead.elsewhere else (start, False)
    step, first = launch.ended.step, before or 0
    if step is None or step <= first:
        return None, False
    return start + (end - start) * min(1.0, (after - first) / (step - first)), True


def _finished(run: Run, launch: Launch) -> bool:
    ended = launch.ended
    if ended is None or launch.diagnosis is not None:
        return False
    return ended.done or (run.state is RunState.COMPLETED and launch is run.last_launch)


def _progress(launch: Launch) -> tuple[int | None, int | None]:
    """Steps of the checkpoints before and after a launch."""
    return (launch.started.progress if launch.started else None, launch.ended.progress if launch.ended else None)


def _look_ahead(run: Run) -> Mapping[tuple[int, int], _Ahead]:
    """What came after each launch, by (attempt, launch)."""
    found: dict[tuple[int, int], _Ahead] = {}
    lowest: int | None = None
    following: str | None = None
    is_last = True
    for attempt in reversed(run.attempts):
        for launch in reversed(attempt.launches):
            if launch.started is None:
                continue
            elsewhere = not is_last and following != launch.started.resume_from
            found[attempt.number, launch.number] = _Ahead(lowest, elsewhere)
            steps = [step for step in (lowest, launch.started.progress) if step is not None]
            lowest, following, is_last = min(steps, default=None), launch.started.resume_from, False
    return found


def _usual_gap(saves: Sequence[float], spans: Sequence[Span]) -> float | None:
    """The median time between two checkpoints of one launch."""
    windows: dict[tuple[int, int], tuple[float, float]] = {}
    for span in spans:
        if span.launch >= 0:
            key = (span.attempt, span.launch)
            known = windows.get(key, (span.start, span.end))
            windows[key] = (min(known[0], span.start), max(known[1], span.end))
    gaps = []
    for start, end in windows.values():
        inside = saves[bisect_left(saves, start) : bisect_right(saves, end)]
        gaps += [later - earlier for earlier, later in itertools.pairwise(inside)]
    return statistics.median(gaps) if gaps else None
