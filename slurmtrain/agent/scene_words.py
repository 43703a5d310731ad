"""What the agent tells all companions about scenes: lines on the input of their srun, which hands them to every node.

No node has to look at shared storage for it, and a word that comes late or never costs nothing but the scene.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from typing import IO

STARTED = "started"  # instead of an ending: the launch begins
_MAX_LINE = 2000
_MAX_PENDING = 64 << 10


@dataclass(frozen=True, slots=True)
class Word:
    """Take the scene of a launch now; with ``ending`` "" none is wanted of it, whatever comes.

    ``STARTED`` tells of a launch that may be over before a companion has looked for its ranks.
    """

    launch: int
    ending: str = ""
    cause: str = ""


def send(word: Word, stream: IO[bytes] | None) -> None:
    """Never waits and never raises: the other side may be gone."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            os.write(stream.fileno(), json.dumps(asdict(word)).encode()[:_MAX_LINE] + b"\n")


class Listener:
    """The companion's side. ``fileno`` is None once nobody can say anything any more."""

    def __init__(self, descriptor: int) -> None:
        self.fileno: int | None = descriptor
        self._pending = b""
        with contextlib.suppress(OSError):
            os.set_blocking(descriptor, False)

    def read(self) -> list[Word]:
        """The words that came since the last look."""
        self._fill()
        *lines, self._pending = self._pending.split(b"\n")
        if len(self._pending) > _MAX_LINE:
            self._pending = b""
        return [word for word in map(_parse, lines) if word is not None]

    def _fill(self) -> None:
        while self.fileno is not None and len(self._pending) < _MAX_PENDING:
            try:
                data = os.read(self.fileno, 1 << 14)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.fileno = None
                return
            self._pending += data


def _parse(line: bytes) -> Word | None:
    try:
        data = json.loads(line)
        word = Word(data["launch"], data["ending"], data["cause"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    fits = type(word.launch) is int and isinstance(word.ending, str) and isinstance(word.cause, str)
    return word if fits and word.launch >= 0 else None
