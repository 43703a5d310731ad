"""Rules on a metric: whether the last values of a log satisfy a condition."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan

from slurmtrain.core.findings import Finding
from slurmtrain.core.rules import Metric, Rule

MOST_STREAMS = 1_000

Stream = tuple[int | None, int | None, int | None]


@dataclass(slots=True)
class _Series:
    """The values of one rule in one rank: how many in a row satisfy it, the first of them, the best before them."""

    metric: Metric
    count: int = 0
    first: Finding | None = None
    best: float | None = None


class Metrics:
    """All series of one log."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, Stream], _Series] = {}

    def take(self, rule: Rule, found: re.Match[str], finding: Finding, stream: Stream) -> None:
        """One more line that a rule's pattern matches."""
        if rule.metric is None:
            return
        try:
            value = float(found.group(1))
        except (ValueError, TypeError, IndexError):
            return
        series = self._series.get((rule.id, stream))
        if series is None:
            if len(self._series) >= MOST_STREAMS:
                return
            series = self._series[(rule.id, stream)] = _Series(rule.metric)
        if _holds(series, value):
            series.count += 1
            series.first = series.first or finding
            series.first.stream = stream
        else:
            series.count, series.first = 0, None

    def reached(self) -> Iterator[Finding]:
        """The first line of each series that is as long as its rule wants; one for each rule."""
        told: set[str] = set()
        for (rule_id, _), series in self._series.items():
            if series.first is not None and series.count >= series.metric.times and rule_id not in told:
                told.add(rule_id)
                series.first.count = series.count
                yield series.first


def _holds(series: _Series, value: float) -> bool:
    op, limit = series.metric.op, series.metric.value
    if op == "nan":
        return isnan(value)
    if op in ("not-rising", "not-falling"):
        return _no_better(series, value if op == "not-rising" else -value)
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[op]


def _no_better(series: _Series, value: float) -> bool:
    if isnan(value):
        return True
    if series.best is None or value > series.best + series.metric.value:
        series.best = value
        return False
    return True
