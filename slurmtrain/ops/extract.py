"""The lines of a log that show it, with what stands around them; bounded in time and size however big the log is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.run import Launch, Run
from slurmtrain.errors import SlurmtrainError
from slurmtrain.hosts.files import open_file
from slurmtrain.logs.follow import last_redraw, read_lines
from slurmtrain.logs.lines import clean, strip_ansi
from slurmtrain.ops.logs import find_segments
from slurmtrain.ops.timeline import RunView

MAX_EVIDENCE = 12
_LAST_LINES = 8  # shown where nothing in the log tells why
_READ_BACK = 1 << 20  # bytes in which they are looked for
_CHUNK = 1 << 18
_MAX_LINE = 4096
_COUNT_S = 10.0  # counting the newlines of 10 GB takes about that long


@dataclass(frozen=True, slots=True)
class Evidence:
    """One log line that shows it; ``line`` is 1-based, None where only the end of the output is shown."""

    file: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ExtractLine:
    """One line of an extract. ``culprit`` marks what shows the cause; ``number`` is 0 where it is not known."""

    number: int
    text: str
    culprit: bool = False


@dataclass(frozen=True, slots=True)
class Extract:
    """Part of a log around the line that shows the cause, or its end."""

    file: str
    lines: tuple[ExtractLine, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        lines = [{"number": x.number or None, "text": x.text, "culprit": x.culprit} for x in self.lines]
        return {"file": self.file, "lines": lines}


def find_evidence(view: RunView, trouble: Diagnosis | None, where: tuple[int, int] | None) -> list[Evidence]:
    """What the diagnosis goes by, or the last lines of the launch where nothing was recognised."""
    if trouble is None or where is None:
        return []
    default = trouble.file or ""
    found = []
    for line in trouble.evidence[:MAX_EVIDENCE]:
        number = line.line if isinstance(line.line, int) and line.line > 0 else None
        found.append(Evidence(clean(str(line.file or default), 300), number, clean(str(line.text))))
    return found or _last_lines(view, where)


def launch_at(state: Run, where: tuple[int, int] | None) -> Launch | None:
    """The launch of (attempt, launch), the attempt's last one for -1."""
    attempt = next((a for a in state.attempts if where is not None and a.number == where[0]), None)
    if attempt is None or where is None or not attempt.launches:
        return None
    if where[1] < 0:
        return attempt.launches[-1]
    return next((launch for launch in attempt.launches if launch.number == where[1]), None)


def _last_lines(view: RunView, where: tuple[int, int]) -> list[Evidence]:
    launch = launch_at(view.state, where)
    if launch is None:
        return []
    try:
        segment = find_segments(view, where[0], launch.number)[-1]
        end = segment.end if segment.end is not None else segment.path.stat().st_size
        lines = deque(read_lines(segment.path, max(segment.start, end - _READ_BACK), end), maxlen=_LAST_LINES)
    except (OSError, IndexError, SlurmtrainError):
        return []
    texts = (show_line(line, 400) for line in lines)
    return [Evidence(str(segment.path), None, text) for text in texts if text.strip()]


def show_line(line: bytes, limit: int = _MAX_LINE) -> str:
    """A line of a log as text that is safe to show: the last state of a redrawn line, no control characters."""
    return clean(last_redraw(strip_ansi(line[: 4 * limit])).decode("utf-8", "replace").rstrip("\n"), limit)


def read_extract(view: RunView, evidence: list[Evidence], *, before: int = 20, after: int = 20) -> Extract | None:
    """What stands around the first line of the evidence that is in a log of this run; None where it cannot be read."""
    for item in evidence:
        path = _log_in_run(view, item.file)
        if path is None:
            continue
        numbers = {e.line: e.text for e in evidence if e.file == item.file and e.line is not None}
        try:
            if item.line is None:
                return _end_of(view, path, evidence)
            lines = tuple(_around(path, item.line, numbers, before, after))
        except OSError:
            continue
        if lines:
            return Extract(str(path), lines)
    return None


def _log_in_run(view: RunView, name: str) -> Path | None:
    """A file below the run directory: the journal may name any."""
    try:
        path = (view.run.path / name).resolve()
        return path if path.is_relative_to(view.run.path.resolve()) and path.is_file() else None
    except (OSError, ValueError, RuntimeError):
        return None


def _end_of(view: RunView, path: Path, evidence: list[Evidence]) -> Extract:
    lines = tuple(ExtractLine(0, item.text) for item in evidence if _log_in_run(view, item.file) == path)
    return Extract(str(path), lines)


def _around(path: Path, number: int, marked: dict[int, str], before: int, after: int) -> Iterator[ExtractLine]:
    first = max(1, number - before)
    with open_file(path) as stream:
        if not _skip_lines(stream, first - 1):
            return
        for at in range(first, number + after + 1):
            line = stream.readline(_CHUNK)
            if not line:
                return
            if not line.endswith(b"\n"):
                _skip_lines(stream, 1)
            yield ExtractLine(at, show_line(line, 1000), at in marked)


def _skip_lines(stream: BinaryIO, lines: int) -> bool:
    """Stand behind so many newlines; False where the file has fewer, or there are too many to count."""
    started = time.monotonic()
    while lines > 0:
        at = stream.tell()
        chunk = stream.read(_CHUNK)
        if not chunk or time.monotonic() - started > _COUNT_S:
            return False
        count = chunk.count(b"\n")
        if count < lines:
            lines -= count
            continue
        position = -1
        for _ in range(lines):
            position = chunk.index(b"\n", position + 1)
        stream.seek(at + position + 1)
        return True
    return True


def find_line(view: RunView, item: Evidence) -> tuple[Path, int] | None:
    """The log of the run in which the line stands, and its offset in bytes; None where it cannot be found."""
    path = _log_in_run(view, item.file)
    if path is None or item.line is None:
        return None
    try:
        with open_file(path) as stream:
            return (path, stream.tell()) if _skip_lines(stream, item.line - 1) else None
    except OSError:
        return None
