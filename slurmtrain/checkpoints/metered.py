"""A stream that ends a reading which takes too much time or memory: what was read until then is looked at."""

from __future__ import annotations

import io
import os
import resource
from pathlib import Path
from typing import BinaryIO, Protocol

from slurmtrain.checkpoints.model import Reading

MEMORY_BYTES = 4 << 30  # that a check may take
SMALL_BYTES = 64 << 20  # no pickle so small needs so much, unless it is damaged
_ROOM = 0.7  # of that memory; the rest is for what a table takes while it grows
_EVERY_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20
_PAGE = resource.getpagesize()


class Enough(Exception):  # noqa: N818 - no error: the rest is left unread
    """The time or the memory for it is used up."""


class Buffered(Protocol):
    """A buffered reader."""

    def peek(self, size: int, /) -> bytes: ...
    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int: ...
    def readline(self) -> bytes: ...


class Metered:
    """For the unpickler, with the methods that it calls. Raises ``Enough``.

    ``share`` of the check's time may have passed. ``size`` in bytes, of all that can be read.
    """

    def __init__(self, stream: Buffered, size: int, reading: Reading, share: float = 1.0) -> None:
        self.size = size
        self.taken = 0  # bytes, about
        self._stream, self._reading, self._share, self._look_at = stream, reading, share, 0

    def peek(self, size: int) -> bytes:
        self._look(0)
        return self._stream.peek(size)

    def read(self, size: int) -> bytes:
        self._look(size)
        return self._stream.read(size)

    def readinto(self, buffer: memoryview) -> int:
        self._look(len(buffer))
        return self._stream.readinto(buffer)

    def readline(self) -> bytes:
        self._look(1)
        return self._stream.readline()

    def _look(self, size: int) -> None:
        self.taken += max(0, size)
        if self.taken < self._look_at:
            return
        self._look_at = self.taken + _EVERY_BYTES
        if self._reading.out_of_time(self._share) or _taken_memory() > _ROOM * allowed_memory():
            raise Enough


def open_metered(path: Path, reading: Reading, share: float = 1.0) -> tuple[Metered, BinaryIO]:
    """A file so, and the stream to close. Raises ``OSError``."""
    stream = io.BufferedReader(io.FileIO(path), BUFFER_BYTES)
    return Metered(stream, os.fstat(stream.fileno()).st_size, reading, share), stream


def allowed_memory() -> int:
    """Bytes; a lower limit (``ulimit -v``, Slurm's VSizeFactor) may be inherited."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(MEMORY_BYTES, limit) if limit >= 0 else MEMORY_BYTES


def _taken_memory() -> int:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[0]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
