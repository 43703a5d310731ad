"""Where things go in the pictures of a run's page: numbers that the template places. No drawing beyond that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slurmtrain.core.effective_time import EffectiveTime, Span, Use

MAX_ROWS = 40  # attempts that have a row each; of more only the last, below a strip of all
_LAST_ROWS = 12
_BINS = 160  # of the strip
_LEAST = 0.25  # percent: what would be narrower could not be seen
_WAIT_SHARE = 0.12  # of the axis that one stretch of waiting may take at most
_LOST_COLOURS = 5
_TICKS = (0.0, 25.0, 50.0, 75.0, 100.0)
_LOST = ("lost", *(f"lost{number}" for number in range(_LOST_COLOURS)))
_ORDER = ("kept", "open", "unknown", *_LOST, "starting", "restarting", "waiting", "held")  # from below
_AWAY = frozenset({Use.WAITING, Use.HELD})


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of a row: ``x`` and ``width`` in percent. ``style`` names its colour."""

    x: float
    width: float
    style: str
    span: Span


@dataclass(frozen=True, slots=True)
class Row:
    """One attempt."""

    attempt: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """``ticks`` are (percent, seconds since the epoch); ``cuts`` where a long wait was shortened, in percent.

    ``strip`` are all attempts where they are too many for rows: (x, width, y, height, style), all in percent.
    """

    rows: tuple[Row, ...] = ()
    ticks: tuple[tuple[float, float], ...] = ()
    cuts: tuple[float, ...] = ()
    causes: tuple[tuple[str, str], ...] = ()  # (style, cause), for the legend
    strip: tuple[tuple[float, float, float, float, str], ...] = ()
    strip_ticks: tuple[tuple[float, float], ...] = ()
    attempts: int = 0


class _Axis:
    """Time to percent: to scale, but a stretch without nodes is never more than a part of the axis."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts: list[float] = []
        self._places: list[float] = []
        self.cuts: list[float] = []
        held = sum(span.seconds for span in spans if span.use not in _AWAY)
        most = held * _WAIT_SHARE if held else float("inf")
        at = 0.0
        for span in spans:
            self._starts.append(span.start)
            self._places.append(at)
            weight = min(span.seconds, most) if span.use in _AWAY else span.seconds
            if weight < span.seconds * 0.99:
                self.cuts.append(at + weight / 2)
            at += weight
        self._starts.append(spans[-1].end)
        self._places.append(at)
        self._whole = at or 1.0
        self.cuts = [100 * cut / self._whole for cut in self.cuts]

    def place(self, time: float) -> float:
        return 100 * self._interpolate(self._starts, self._places, time) / self._whole

    def time(self, percent: float) -> float:
        return self._interpolate(self._places, self._starts, percent * self._whole / 100)

    @staticmethod
    def _interpolate(known: Sequence[float], wanted: Sequence[float], value: float) -> float:
        index = min(max(bisect_right(known, value) - 1, 0), len(known) - 2)
        width = known[index + 1] - known[index]
        share = min(1.0, max(0.0, (value - known[index]) / width)) if width > 0 else 0.0
        return wanted[index] + share * (wanted[index + 1] - wanted[index])


def draw_timeline(time: EffectiveTime, causes: Mapping[tuple[int, int], str]) -> Chart:
    """Attempts as rows. ``causes`` are those of launches, by (attempt, launch): they colour what was lost."""
    spans = time.spans
    if not spans:
        return Chart()
    styles = _cause_styles(spans, causes)
    named = tuple((style, cause) for cause, style in styles.items())
    by_attempt: dict[int, list[Span]] = {}
    for span in spans:
        by_attempt.setdefault(span.attempt, []).append(span)
    numbers = list(by_attempt)
    chart = Chart(causes=named, attempts=len(numbers))
    if len(numbers) > MAX_ROWS:
        numbers = numbers[-_LAST_ROWS:]
        strip_ticks = tuple((p, spans[0].start + p / 100 * (spans[-1].end - spans[0].start)) for p in _TICKS)
        chart = replace(chart, strip=tuple(_strip(spans, causes, styles)), strip_ticks=strip_ticks)
    axis = _Axis([span for number in numbers for span in by_attempt[number]])
    rows = tuple(Row(number, tuple(_bars(by_attempt[number], axis, causes, styles))) for number in numbers)
    ticks = tuple((percent, axis.time(percent)) for percent in _TICKS)
    return replace(chart, rows=rows, ticks=ticks, cuts=tuple(axis.cuts[:50]))


def _strip(
    spans: Sequence[Span], causes: Mapping[tuple[int, int], str], styles: Mapping[str, str]
) -> Iterator[tuple[float, float, float, float, str]]:
    """All time to scale in equal parts, each divided by what it was used for."""
    begin, width = spans[0].start, (spans[-1].end - spans[0].start) / _BINS
    bins: list[dict[str, float]] = [{} for _ in range(_BINS)]
    for span in spans:
        style = _style_of(span, causes, styles)
        first, last = (min(_BINS - 1, max(0, int((at - begin) / width))) for at in (span.start, span.end))
        for number in range(first, last + 1):
            inside = min(span.end, begin + (number + 1) * width) - max(span.start, begin + number * width)
            if inside > 0:
                bins[number][style] = bins[number].get(style, 0.0) + inside
    for number, found in enumerate(bins):
        whole, y = sum(found.values()), 100.0
        for style in sorted(found, key=_ORDER.index):
            height = 100 * found[style] / whole
            y -= height
            yield number * 100 / _BINS, 100 / _BINS, y, height, style


def _style_of(span: Span, causes: Mapping[tuple[int, int], str], styles: Mapping[str, str]) -> str:
    if span.use is not Use.LOST:
        return str(span.use.value)
    return styles.get(causes.get((span.attempt, span.launch), ""), "lost")


def _cause_styles(spans: Sequence[Span], causes: Mapping[tuple[int, int], str]) -> dict[str, str]:
    """A colour for each of the causes that cost most; the others share one."""
    lost: dict[str, float] = {}
    for span in spans:
        if span.use is Use.LOST and (cause := causes.get((span.attempt, span.launch))):
            lost[cause] = lost.get(cause, 0.0) + span.seconds
    ranked = sorted(lost, key=lambda cause: -lost[cause])
    return {cause: f"lost{min(place, _LOST_COLOURS - 1)}" for place, cause in enumerate(ranked)}


def _bars(
    spans: Sequence[Span], axis: _Axis, causes: Mapping[tuple[int, int], str], styles: Mapping[str, str]
) -> list[Bar]:
    """The bars of a row; where many would be narrower than can be seen, the longest of them stands for all."""
    bars: list[Bar] = []
    for span in spans:
        x, end = axis.place(span.start), axis.place(span.end)
        bar = Bar(min(x, 100 - _LEAST), max(end - x, _LEAST), _style_of(span, causes, styles), span)
        if bars and x < bars[-1].x + _LEAST and end - x < _LEAST and bars[-1].width <= _LEAST:
            bars[-1] = bar if span.seconds > bars[-1].span.seconds else bars[-1]
        else:
            bars.append(bar)
    return bars


def draw_shares(time: EffectiveTime) -> list[tuple[str, float, float, float]]:
    """A single bar of all uses: (use, x, width) in percent, and its seconds."""
    whole = time.whole_s
    if whole <= 0:
        return []
    found, x = [], 0.0
    totals = time.totals
    for use in (Use.KEPT, Use.OPEN, Use.UNKNOWN, Use.LOST, Use.STARTING, Use.RESTARTING, Use.WAITING, Use.HELD):
        if seconds := totals.get(use, 0.0):
            width = 100 * seconds / whole
            found.append((use.value, x, width, seconds))
            x += width
    return found
