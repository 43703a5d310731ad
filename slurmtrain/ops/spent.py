"""A run's checkpoints as a reader lists them, and its time measured with them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.find import Found, find_all
from slurmtrain.core.effective_time import TRAINING, EffectiveTime, Use, measure_time
from slurmtrain.ops.timeline import RunView, as_time
from slurmtrain.store.rundir import Plan

MAX_LISTED = 50
_MAX_TIMED = 5  # newest folders whose files tell how long a save takes
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
        return measure_time(view.state, now, saved_at=times, save_s=_save_time(found))
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        return EffectiveTime()


def _save_time(found: Sequence[Found]) -> float | None:
    """How long a save takes: from the first to the last file of a checkpoint's folder, the median of the newest."""
    spans = [span for one in found[:_MAX_TIMED] if (span := _written_in(one.path)) is not None]
    return statistics.median(spans) if spans else None


def _written_in(folder: Path) -> float | None:
    try:
        with os.scandir(folder) as entries:
            times = [entry.stat(follow_symlinks=False).st_mtime for entry in islice(entries, _MAX_FILES)]
    except OSError:
        return None
    span = max(times) - min(times) if len(times) > 1 else 0.0
    return span if span > 0.5 else None  # a file system's clock and ours are never closer


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
