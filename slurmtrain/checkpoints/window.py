"""A part of a file as a file of its own."""

from __future__ import annotations

import io
from typing import IO


class Window(io.RawIOBase):
    """Bytes ``start`` to ``start + size`` of ``stream``; nothing is copied."""

    def __init__(self, stream: IO[bytes], start: int, size: int, name: str) -> None:
        super().__init__()
        self.name = name
        self._stream, self._start, self._size, self._at = stream, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        self._stream.seek(self._start + self._at)
        found = self._stream.read(left if size is None or size < 0 else min(size, left))
        self._at += len(found)
        return found
