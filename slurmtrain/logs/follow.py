"""Reading a log that others write: whole, its last lines, or as it grows; and making its text safe for a terminal.

A followed file is opened anew at every look, because that is when a network file system asks its server, and known by
(device, inode). One that was replaced is read to its end before the new one is begun; one that shrank is begun again.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

CHUNK = 1 << 16
MAX_LINE = 1 << 20  # a longer line is handed on in pieces

_SGR = rb"\x1b\[[0-9;:]{0,32}m"  # colours and bold: the only sequences that change nothing but the looks of text
_OTHER = rb"\x1b(?:\[[0-9;:?<=>]{0,64}[ -/]{0,4}[@-~]|[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|[ -/]{0,4}[0-~])?"
_TOKENS = re.compile(rb"(?P<colour>" + _SGR + rb")|(?P<escape>" + _OTHER + rb")|(?P<control>[\x00-\x08\x0b-\x1f\x7f])")
# C1 controls (8-bit escapes) and marks that reorder text on the screen.
_UNSAFE = re.compile("[\x80-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_RESET = b"\x1b[0m"


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a log: ``data`` are whole lines where the writer had ended them. ``notice`` is for the reader alone."""

    data: bytes = b""
    notice: str = ""


class FileFollower:
    """One growing file. ``poll`` gives what is new; a file that does not exist yet has nothing new."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self._offset = offset
        self._stream: BinaryIO | None = None
        self._identity: tuple[int, int] | None = None

    @property
    def offset(self) -> int:
        """Where the next byte will be read from."""
        return self._offset

    def poll(self) -> Iterator[Piece]:
        """What was written since the last look; never raises for a file that is away for a moment."""
        try:
            stream = self.path.open("rb")
        except OSError:
            yield from self._drain()
            return
        found = os.fstat(stream.fileno())
        identity = (found.st_dev, found.st_ino)
        if self._identity is not None and identity != self._identity:
            yield from self._drain()
            self._offset = 0
            yield Piece(notice=f"{self.path.name} was replaced; going on with the new file")
        elif found.st_size < self._offset:
            self._offset = 0
            yield Piece(notice=f"{self.path.name} was truncated; going on from its beginning")
        self._swap(stream)
        self._identity = identity
        yield from self._drain()

    def close(self) -> None:
        """Let go of the file; following may go on afterwards."""
        self._swap(None)

    def _swap(self, stream: BinaryIO | None) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
        self._stream = stream

    def _drain(self) -> Iterator[Piece]:
        if self._stream is None:
            return
        try:
            self._stream.seek(self._offset)
            while data := self._stream.read(CHUNK):
                self._offset += len(data)
                yield Piece(data)
        except OSError:  # a stale handle: the file is gone, what it still held cannot be read
            return


class LineJoiner:
    """Bytes in pieces → whole lines. An unfinished line is kept until it ends, or until ``flush``."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def held(self) -> int:
        """How many bytes wait for the end of their line."""
        return len(self._rest)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete now, each with its newline."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            yield line + b"\n"
        if len(self._rest) > MAX_LINE:
            yield self.flush()

    def flush(self) -> bytes:
        """The unfinished line, without a newline."""
        rest, self._rest = self._rest, b""
        return rest


def read_range(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes from ``start`` to ``end`` (the end of the file for None). Raises ``OSError``."""
    with path.open("rb") as stream:
        stream.seek(start)
        left = None if end is None else max(0, end - start)
        while data := stream.read(CHUNK if left is None else min(CHUNK, left)):
            yield data
            if left is not None:
                left -= len(data)


def read_blocks(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The same in blocks of whole lines; a line longer than ``MAX_LINE``, and the last one, come in parts."""
    rest = b""
    for data in read_range(path, start, end):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield rest + data[:cut]
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > MAX_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def read_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The same, line by line; the last may lack its newline. Raises ``OSError``."""
    joiner = LineJoiner()
    for data in read_range(path, start, end):
        yield from joiner.feed(data)
    if joiner.held:
        yield joiner.flush()


def find_tail(path: Path, lines: int, start: int = 0, end: int | None = None) -> int:
    """Offset at which the last ``lines`` lines between ``start`` and ``end`` begin. Raises ``OSError``."""
    with path.open("rb") as stream:
        stop = stream.seek(0, os.SEEK_END) if end is None else end
        if lines <= 0:
            return stop
        position, wanted = stop, lines + 1  # the newline before the first wanted line
        while position > start:
            size = min(CHUNK, position - start)
            position -= size
            stream.seek(position)
            data = stream.read(size)
            if position + size == stop and not data.endswith(b"\n"):
                wanted -= 1  # an unfinished last line has no newline of its own
            at = len(data)
            while (at := data.rfind(b"\n", 0, at)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return position + at + 1
        return start


def last_redraw(line: bytes) -> bytes:
    """What a terminal would show in the end of a line that was redrawn with carriage returns (a progress bar)."""
    body, newline = (line[:-1], b"\n") if line.endswith(b"\n") else (line, b"")
    if b"\r" not in body:
        return line
    parts = [part for part in body.split(b"\r") if part.strip()]
    return (parts[-1] if parts else b"") + newline


def for_terminal(line: bytes, *, colours: bool = True) -> bytes:
    """The line without anything that a hostile log could do to a terminal; ``colours`` stay and end with the line.

    Control characters are shown escaped (``\\x07``), other escape sequences and marks that reorder text are dropped.
    The result is UTF-8.
    """
    coloured = False

    def replace(found: re.Match[bytes]) -> bytes:
        nonlocal coloured
        if found["colour"]:
            coloured = colours
            return found["colour"] if colours else b""
        return f"\\x{found['control'][0]:02x}".encode() if found["control"] else b""

    body, newline = (line[:-1], b"\n") if line.endswith(b"\n") else (line, b"")
    safe = _TOKENS.sub(replace, last_redraw(body))
    text = _UNSAFE.sub("", safe.decode("utf-8", "replace")).encode()
    return text + (_RESET if coloured else b"") + newline
