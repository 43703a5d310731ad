"""A run's checkpoints as a reader lists them, and its time measured with them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.find import Found, find_all
from slurmtrain.core.effective_time import TRAINING, EffectiveTime, Use, measure_time
from slurmtrain.hosts.birth import read_birth
from slurmtrain.logs.pace import read_save_time
from slurmtrain.ops.timeline import RunView, as_time
from slurmtrain.store.rundir import HEARTBEAT, Plan

MAX_LISTED = 50
_MAX_TIMED = 5  # newest checkpoints whose files tell how long a save takes, newest launches that tell it
_CLOCKS_S, _LONGEST_S = 0.5, 86400.0
_MAX_FILES = 512
_MAX_TIMES = 5000


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that exists; ``step`` and ``at`` (seconds since the epoch) as far as they can be told."""

    path: str
    step: int | None
    at: float | None


def list_checkpoints(view: RunView, plan: Plan | None) -> list[Found]:
    """The newest first; none where the plan cannot be read. Their content is not looked at."""
    return find_all(view.run.path, plan.spec.checkpoint) if plan is not None else []


def to_saved(found: Sequence[Found]) -> tuple[Saved, ...]:
    return tuple(Saved(str(one.path), one.step, as_time(one.modified)) for one in found[:MAX_LISTED])


def measure_run(view: RunView, found: Sequence[Found], now: float) -> EffectiveTime:
    """Where the run's time went. Times that make no sense leave it empty."""
    times = [at for one in found[:_MAX_TIMES] if (at := as_time(one.modified)) is not None]
    try:
        return measure_time(view.state, now, saved_at=times, save_s=_save_time(view, found))
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return EffectiveTime()


def _save_time(view: RunView, found: Sequence[Found]) -> float | None:
    """How long a save takes, the median of the newest: as the training measured it, else as the files' times tell."""
    told = list(islice(_reported(view), _MAX_TIMED))
    spans = told or [
        span
        for one, before in zip_longest(found[:_MAX_TIMED], found[1 : _MAX_TIMED + 1])
        if (span := _written_in(one, before)) is not None
    ]
    return statistics.median(spans) if spans else None


def _reported(view: RunView) -> Iterator[float]:
    """What ``atomic_save`` of ``slurmtrain.training`` measured, the newest launches first."""
    launches = [(attempt.number, launch.number) for attempt in view.state.attempts for launch in attempt.launches]
    for attempt, launch in reversed(launches[-_MAX_TIMED:]):
        seconds = read_save_time(view.run.attempt(attempt).launch(launch) / HEARTBEAT)
        if seconds is not None:
            yield seconds


def _written_in(one: Found, before: Found | None) -> float | None:
    """From the first to the last byte of a checkpoint; None where that cannot be told.

    A file that is older than the checkpoint before it is one that is written anew, again and again.
    """
    try:
        files = [one.path.with_name(part) for part in one.parts] or _files_of(one.path)
        ends = [file.stat(follow_symlinks=False).st_mtime for file in files]
    except OSError:
        return None
    births = [birth for file in files if (birth := read_birth(file)) is not None]
    if not births:  # of a folder, roughly: a file system's clock and ours are never closer
        span = max(ends) - min(ends) if ends else 0.0
        return span if span > _CLOCKS_S else None
    span = max(ends) - min(births)
    if before is None:
        return span if len(files) > 1 and 0 < span <= _LONGEST_S else None
    return span if 0 < span <= one.modified - before.modified else None


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    with os.scandir(path) as entries:
        return [Path(entry.path) for entry in islice(entries, _MAX_FILES)]


def time_to_dict(time: EffectiveTime) -> dict[str, Any]:
    """Seconds by use, and what was measured; None where it was not."""
    totals = time.totals
    return {
        "whole_s": round(time.whole_s, 1),
        **{f"{use.value}_s": round(totals.get(use, 0.0), 1) for use in Use},
        "training_s": round(sum(totals.get(use, 0.0) for use in TRAINING), 1),
        "failures": time.failures,
        "failure_every_s": _rounded(time.failure_every_s),
        "save_every_s": _rounded(time.save_every_s),
        "save_s": _rounded(time.save_s),
        "suggested_save_every_s": _rounded(time.suggested_s),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
