"""How far a launch came: the highest step in its heartbeat and in the end of its output."""

from __future__ import annotations

import re
from pathlib import Path

from slurmtrain.logs.lines import strip_ansi
from slurmtrain.logs.progress import step_of

_READ_BACK = 1 << 18  # bytes at the end of a launch's output
_LINE = 4096
_LABEL = re.compile(rb"^\s*\d+: ")  # srun --label
_HEARTBEAT = re.compile(rb"\s*(\d{1,12})\b")


def read_step(log: Path, start: int, end: int | None, heartbeat: Path) -> int | None:
    """None where neither tells a step, or cannot be read. Never raises."""
    told = [_read_heartbeat(heartbeat), _read_log(log, start, end)]
    return max((step for step in told if step is not None), default=None)


def _read_heartbeat(path: Path) -> int | None:
    """The first word of the file, where it is a whole number."""
    try:
        with path.open("rb") as stream:
            found = _HEARTBEAT.match(stream.read(64))
    except OSError:
        return None
    return int(found[1]) if found else None


def _read_log(path: Path, start: int, end: int | None) -> int | None:
    try:
        with path.open("rb") as stream:
            stop = end if end is not None else stream.seek(0, 2)
            begin = max(start, stop - _READ_BACK)
            stream.seek(begin)
            data = stream.read(max(0, min(stop - begin, _READ_BACK)))
    except OSError:
        return None
    steps = (_step(part) for line in data.splitlines() for part in line.split(b"\r"))
    return max((step for step in steps if step is not None), default=None)


def _step(line: bytes) -> int | None:
    return step_of(_LABEL.sub(b"", strip_ansi(line[:_LINE])).decode("utf-8", "replace"))
