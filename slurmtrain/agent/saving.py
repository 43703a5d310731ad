"""Saving at the end: a save in progress is not cut short while there is time, and what came too late is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.checkpoints.find import Found
from slurmtrain.core.timetext import say_duration

LOOK_BEFORE_S = 10.0  # the end: from then on it is looked at whether something is being written
_LOOK_S = 1.0
_WRITES_WITHIN_S = 6.0  # a big file's size may stand still on a network file system for a while
_MAX_ENTRIES = 2000
_LEVELS = 4


class SaveWatch:
    """Whether the training writes into its folder of checkpoints just now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: frozenset[tuple[str, int, int]] | None = None
        self._changed_at: float | None = None
        self._next_look = 0.0

    def in_progress(self) -> bool:
        """Call it from ``LOOK_BEFORE_S`` before the end on: only what changes between two calls counts."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_S
            seen = frozenset(_entries(self._folder))
            if self._seen is not None and seen != self._seen:
                self._changed_at = now
            self._seen = seen
        return self._changed_at is not None and now - self._changed_at <= _WRITES_WITHIN_S


def _entries(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Names, sizes and times of what lies there and one level below, bounded; of hidden folders some levels more.

    ``atomic_save`` writes to ``.step-5.….tmp/step-5/weights``.
    """
    left, folders = _MAX_ENTRIES, [folder]
    for depth in range(_LEVELS):
        below: list[Path] = []
        for place in folders:
            try:
                with os.scandir(place) as entries:
                    for entry in entries:
                        if left <= 0:
                            return
                        left -= 1
                        info = entry.stat(follow_symlinks=False)
                        yield entry.path, info.st_size, info.st_mtime_ns
                        is_wanted = depth == 0 or os.path.relpath(place, folder).startswith(".")
                        if is_wanted and entry.is_dir(follow_symlinks=False):
                            below.append(Path(entry.path))
            except OSError:
                continue
        folders = below


def describe_saving(
    newest: Found | None, started_at: float, asked_at: float | None, ended_at: float, broken: str = ""
) -> str:
    """``saved step-400.pt, 12 s before the end``, or how much work is lost. Times in seconds since the epoch.

    ``asked_at`` is None where the end came unasked: then the newest checkpoint is what there is. ``broken`` says what a
    newer one lacks, one that was cut off in its save.
    """
    since = max(newest.modified if newest is not None else 0.0, started_at)
    lost = say_duration(ended_at - since)
    why = f"{broken}; " if broken else ""
    if newest is None:
        return f"not saved: {why or 'there is no checkpoint, and '}{lost} of work are lost"
    if asked_at is not None and newest.modified >= asked_at - 1:
        after = f"; {broken}" if broken else ""
        return f"saved {newest.path.name}, {say_duration(ended_at - newest.modified)} before the end{after}"
    if newest.modified <= started_at:
        return f"not saved: {why}the {lost} of work of this launch are lost"
    return f"not saved: {why}{lost} of work since {newest.path.name} are lost"
