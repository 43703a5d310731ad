"""When the bytes of a log were written. Lines carry no time of their own, so the agent marks sizes of files.

``launches/<M>/log-times`` holds a line for each mark: seconds since the epoch, the size of the job's log, and the sizes
of the nodes' own logs in their order, where there are some. A mark is made once a minute while something is written,
more often in the first minute, from which the speed of the first steps is told, more seldom where there are many nodes.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from slurmtrain.errors import UsageError

NAME = "log-times"
EVERY_S = 60.0
_EARLY_S = 5.0  # in the first minute
_FILES = 32  # so many files are marked once a minute, ten times as many every ten minutes
_MAX_BYTES = 64 << 20
_LEAST_FREE = 1 << 20  # bytes; marks never take the last of a disk
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(?:[0-9]{1,9}[smhdw])+", re.ASCII)
_CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?", re.ASCII)
_AT = re.compile(rb"[0-9]{1,11}(?:\.[0-9])?")

Mark = tuple[float, tuple[int, ...]]


def parse_since(text: str, now: datetime) -> float:
    """Seconds since the epoch of ``10m``, ``1h30m``, ``2d``, ``14:30`` (the last one), or a date with or without time.

    ``now`` is aware; what names no zone is in its zone. Raises ``UsageError``.
    """
    value = text.strip()
    if _DURATION.fullmatch(value):
        total = sum(int(n) * _UNITS[unit] for n, unit in re.findall(r"([0-9]+)([smhdw])", value))
        return max(0.0, now.timestamp() - total)
    if found := _CLOCK.fullmatch(value):
        hour, minute, second = (int(part or 0) for part in found.groups())
        at = now.replace(hour=hour, minute=minute, second=second, microsecond=0)
        return (at if at <= now else at - timedelta(days=1)).timestamp()
    try:
        day = datetime.fromisoformat(value.replace("Z", "+00:00"))
        return (day if day.tzinfo else day.replace(tzinfo=now.tzinfo)).timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"{value[:40]!r} is no time: write how long ago (10m, 1h30m, 2d), a time of day (14:30), or a date "
            "(2026-11-30, 2026-11-30T14:30)"
        ) from None


class LogTimes:
    """Makes the marks of one launch; never raises."""

    def __init__(self, folder: Path, sizes: Callable[[], Sequence[int]]) -> None:
        self._path = folder / NAME
        self._sizes = sizes
        self._last: tuple[int, ...] = ()
        self._next = 0.0
        self._begun: float | None = None

    def look(self, now: float) -> None:
        """Make a mark if it is time for one; ``now`` is a monotonic clock's."""
        if now < self._next:
            return
        sizes = tuple(self._sizes())
        self._begun = now if self._begun is None else self._begun
        every = EVERY_S if now - self._begun >= EVERY_S else _EARLY_S
        self._next = now + every * max(1.0, len(sizes) / _FILES)
        if sizes == self._last:
            return
        self._last = sizes
        with contextlib.suppress(OSError):
            if _free(self._path.parent) < _LEAST_FREE:
                return
            with self._path.open("a", encoding="ascii") as stream:
                stream.write(" ".join(map(str, (f"{time.time():.1f}", *sizes))) + "\n")


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def read_marks(folder: Path, most_bytes: int = _MAX_BYTES) -> list[Mark]:
    """The marks of a launch, oldest first; what is no mark is passed over. Never raises.

    ``most_bytes``: those of the beginning of the file alone.
    """
    marks: list[Mark] = []
    try:
        with (folder / NAME).open("rb") as stream:
            lines = stream.read(most_bytes).split(b"\n")[:-1]  # the last may be cut
    except OSError:
        return marks
    for line in lines:
        words = line.split()
        if len(words) > 1 and _AT.fullmatch(words[0]) and all(w.isdigit() and len(w) < 19 for w in words[1:]):
            marks.append((float(words[0]), tuple(map(int, words[1:]))))
    return marks
