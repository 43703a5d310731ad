"""Which ended runs may go, and why each other one stays. A pure decision; ``ops.prune`` carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAST_S = 7 * 86400.0  # on top of a training cycle and two retry windows
LEAST_WINDOW_S = 3600.0
TIDY_AFTER_S = 86400.0  # an ended run's small files are joined once nobody will look for the single ones


@dataclass(frozen=True, slots=True)
class Limits:
    """What was asked for; None sets no limit."""

    older_than_s: float | None = None  # since the end of the run
    max_bytes: int | None = None  # of all runs of the store together
    keep_last: int | None = None  # ended runs

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in (self.older_than_s, self.max_bytes, self.keep_last))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run as retention sees it. ``protected`` says why it must stay, "" where nothing protects it."""

    run_id: str
    ended_at: float | None = None
    cycle_s: float = 0.0  # its time limit, or its longest attempt if that was longer
    window_s: float = LEAST_WINDOW_S  # the longest wait for a next attempt
    size: int = 0
    protected: str = ""

    @property
    def floor_s(self) -> float:
        """So long after its end a run stays whatever the limits say."""
        return self.cycle_s + 2 * max(self.window_s, LEAST_WINDOW_S) + LEAST_S


def choose(runs: Iterable[Candidate], limits: Limits, now: float) -> Mapping[str, tuple[bool, str]]:
    """For each run id whether it goes, and why it goes or stays."""
    verdicts: dict[str, tuple[bool, str]] = {}
    everything = list(runs)
    total = sum(run.size for run in everything)
    ended = sorted((run for run in everything if run.ended_at is not None), key=lambda r: r.ended_at or 0.0)
    newest = {run.run_id for run in ended[-limits.keep_last :]} if limits.keep_last else set()
    for run in everything:
        if run.protected:
            verdicts[run.run_id] = (False, run.protected)
        elif run.ended_at is None:
            verdicts[run.run_id] = (False, "its journal does not say when it ended")
    for run in ended:
        if run.run_id in verdicts:
            continue
        why = _why(run, limits, now, newest, total)
        left_s = run.floor_s - (now - (run.ended_at or 0.0))
        if not why:
            verdicts[run.run_id] = (False, "within all limits" if limits.any else "no limit was given")
        elif left_s > 0:
            verdicts[run.run_id] = (False, f"{why}, but it stays for another {_span(left_s)} in any case")
        else:
            verdicts[run.run_id] = (True, why)
            total -= run.size
    return verdicts


def _why(run: Candidate, limits: Limits, now: float, newest: set[str], total: int) -> str:
    """Which limit it is beyond, in words."""
    age = now - (run.ended_at or 0.0)
    if limits.older_than_s is not None and age > limits.older_than_s:
        return f"it ended {_span(age)} ago"
    if limits.keep_last is not None and run.run_id not in newest:
        return f"it is none of the last {limits.keep_last} that ended"
    if limits.max_bytes is not None and total > limits.max_bytes:
        return "the runs are too large together, and it is the oldest"
    return ""


def _span(seconds: float) -> str:
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} d"
