"""How far a launch came: the highest step in its heartbeat and in the end of its output; and whether it still moves."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from slurmtrain.hosts.files import open_file
from slurmtrain.logs.counters import CountReader, choose_counters
from slurmtrain.logs.lines import strip_ansi
from slurmtrain.logs.progress import loss_of, step_of
from slurmtrain.logs.window import read_end

_READ_BACK = 1 << 18  # bytes at the end of a launch's output
_LINE = 4096
_REMEMBERED = 256  # steps, so that one that is repeated is known again
_LABEL = re.compile(rb"^\s*\d+: ")  # srun --label
_HEARTBEAT = re.compile(rb"\s*(\d{1,12})\b")


class StepTrail:
    """Whether a launch makes steps, from one look to the next. Never raises.

    A step counts by its number and its loss: a counter that begins anew with each epoch moves, a line that is repeated
    does not.
    """

    def __init__(self, log: Path, start: int, heartbeat: Path | None) -> None:
        self._log, self._offset, self._heartbeat = log, start, heartbeat
        self._reader = CountReader()
        self._known: deque[tuple[int, float | None]] = deque(maxlen=_REMEMBERED)
        self._beat: int | None = None

    def has_moved(self) -> bool:
        """Whether a step was told since the last look that is new."""
        beat = _read_heartbeat(self._heartbeat) if self._heartbeat is not None else None
        moved, self._beat = beat is not None and beat != self._beat, beat
        for line in self._new_lines():
            told = self._step_and_loss(_text(line))
            if told is not None and told not in self._known:
                self._known.append(told)
                moved = True
        return moved

    def _step_and_loss(self, text: str) -> tuple[int, float | None] | None:
        """The batch of an evaluation, too, which is no step of the training but one that it makes."""
        count = self._reader.read(text)
        step = count.step if count is not None else step_of(text)
        loss = loss_of(text) if step is not None else None
        return (step, None if loss is None or math.isnan(loss) else loss) if step is not None else None

    def _new_lines(self) -> list[bytes]:
        try:
            with self._log.open("rb") as stream:
                end = stream.seek(0, 2)
                if end < self._offset:
                    self._offset = 0  # somebody emptied it
                stream.seek(max(self._offset, end - _READ_BACK))
                data = stream.read(_READ_BACK)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1 or data.rfind(b"\r") + 1
        self._offset = end - len(data) + whole
        return [part for line in data[:whole].splitlines() for part in line.split(b"\r")]


def read_step(heartbeat: Path, logs: Iterable[tuple[Path, int, int | None]]) -> int | None:
    """``logs`` are files with the first and the last byte that count (None: the end of the file).

    None where nothing tells a step, or cannot be read. Never raises.
    """
    told = [_read_heartbeat(heartbeat), *(_read_log(*log) for log in logs)]
    return max((step for step in told if step is not None), default=None)


def _read_heartbeat(path: Path) -> int | None:
    """The first word of the file, where it is a whole number."""
    try:
        with open_file(path) as stream:
            found = _HEARTBEAT.match(stream.read(64))
    except OSError:
        return None
    return int(found[1]) if found else None


def _read_log(path: Path, start: int, end: int | None) -> int | None:
    try:
        data, _ = read_end(path, start, end, _READ_BACK)
    except OSError:
        return None
    reader = CountReader()
    lines = (part for line in data.splitlines() for part in line.split(b"\r"))
    counts = [count for line in lines if (count := reader.read(_text(line))) is not None]
    counters = choose_counters(counts)
    return max((count.step for count in counts if not counters or count.counter in counters), default=None)


def _text(line: bytes) -> str:
    return _LABEL.sub(b"", strip_ansi(line[:_LINE])).decode("utf-8", "replace")
