"""One pass over a log: bounded memory, linear time, line numbers and ranks.

The bytes are searched for the literals of all rules at once; only lines that hold one are decoded, freed of prefixes
and given to the patterns. Carriage returns separate like newlines but do not count. Long lines are read in windows.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from slurmtrain.core.findings import Finding, Findings
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.collect import Collector
from slurmtrain.logs.lines import strip_ansi
from slurmtrain.logs.matcher import Matcher, matcher_of
from slurmtrain.logs.quickscan import QuickFinder

CHUNK = 1 << 18  # fits a core's cache: every byte is looked at several times
CONTEXT = 6144
AHEAD = 2048
WINDOW_BEFORE = 2048
WINDOW_AFTER = 4096
LONG_LINE = 1 << 18
TAIL = 1 << 16

# Finds the start of every literal, whatever its case, in order.
Finder = Callable[[bytes], Iterator[int]]


_NOT_NEWLINE = bytes(value for value in range(256) if value != 10)


def _count_lines(data: bytes) -> int:
    """Newlines; before 3.13 `bytes.count` looks at one byte at a time, and taking all else out is faster."""
    return data.count(b"\n") if sys.version_info >= (3, 13) else len(data.translate(None, _NOT_NEWLINE))


class Scanner:
    """Feed it bytes, then `finish`."""

    def __init__(self, matcher: Matcher, name: str, start_line: int = 1, finder: Finder | None = None) -> None:
        self._collect = Collector(matcher, name)
        self._finder = finder or _finder_of(matcher)
        self._held = b""
        self._buffer = b""
        self._done = 0
        self._line = start_line
        self._first_line = start_line
        self._head = b""
        self._tail = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log."""
        if self._held:
            data, self._held = self._held + data, b""
        escape = data.rfind(b"\x1b", max(0, len(data) - 300))
        if escape >= 0 and b"\n" not in data[escape:]:
            data, self._held = data[:escape], data[escape:]
        data = strip_ansi(data)
        self._tail = (self._tail + data)[-TAIL:] if len(data) < TAIL else data[-TAIL:]
        self._buffer += data
        end = self._buffer.rfind(b"\n", self._done, max(self._done, len(self._buffer) - AHEAD)) + 1
        if end <= self._done:
            if len(self._buffer) - self._done < LONG_LINE:
                return
            end = len(self._buffer) - AHEAD
        self._consume(end)
        self._forget()

    def find_metric(self) -> Finding | None:
        """A metric rule whose values are there already, while the log still grows."""
        return self._collect.find_metric()

    def finish(self) -> Findings:
        """Take what is left, and say what was seen."""
        if self._held:
            self._buffer += strip_ansi(self._held)
            self._tail = (self._tail + self._held)[-TAIL:]
        self._consume(len(self._buffer))
        ends_open = bool(self._buffer) and not self._buffer.endswith(b"\n")
        lines = self._line - self._first_line + (1 if ends_open else 0)
        return self._collect.finish(self._tail, self._first_line + lines, lines)

    def _forget(self) -> None:
        keep_from = max(0, self._done - CONTEXT)
        line_start = self._buffer.rfind(b"\n", 0, self._done) + 1
        self._head = self._buffer[line_start : line_start + 256] if line_start else (self._head or self._buffer[:256])
        if line_start == self._done:
            self._head = b""
        self._buffer = self._buffer[keep_from:]
        self._done -= keep_from
        self._collect.rebase(keep_from)

    def _consume(self, end: int) -> None:
        """Handle everything that starts before `end`."""
        if end <= self._done:
            return
        base, position = self._done, 0
        for hit in self._finder(self._buffer[base:] if base else self._buffer):
            if hit < position:
                continue
            if base + hit >= end:
                break
            position = self._visit(base + hit) - base
        stop = max(end, base + position)
        self._collect.watch(self._buffer, stop)
        self._advance(min(stop, len(self._buffer)))

    def _advance(self, to: int) -> None:
        if to > self._done:
            self._line += _count_lines(self._buffer[self._done : to])
            self._done = to

    def _visit(self, hit: int) -> int:
        """Look at the line (or the window of a long one) around a literal; returns where to go on."""
        buffer = self._buffer
        start = max(buffer.rfind(b"\n", 0, hit), buffer.rfind(b"\r", max(0, hit - CONTEXT), hit)) + 1
        low = max(start, hit - WINDOW_BEFORE)
        stop = min(hit + WINDOW_AFTER, len(buffer))
        newline = buffer.find(b"\n", hit, stop)
        stop = newline if newline >= 0 else stop
        back = buffer.find(b"\r", hit, stop)
        stop = back if back >= 0 else stop
        self._collect.watch(buffer, start)
        self._advance(max(self._done, start))
        head = b""
        if low > start:
            head = buffer[start : start + 256]
        elif start == 0 and self._head:
            head = self._head
        self._collect.line(buffer, low, stop, self._line, head)
        return stop


_QUICK: list[tuple[Matcher, QuickFinder]] = []  # the last one: a folder of a thousand logs builds it once


def _finder_of(matcher: Matcher) -> Finder:
    if _QUICK and _QUICK[0][0] is matcher:
        return _QUICK[0][1]
    if matcher.words and not matcher.unfiltered and not any("\n" in word or "\r" in word for word in matcher.words):
        _QUICK[:] = [(matcher, QuickFinder(matcher))]
        return _QUICK[0][1]

    def find(data: bytes) -> Iterator[int]:
        return (found.start() for found in matcher.filter.finditer(data.lower()))

    return find


def scan_log(
    stream: BinaryIO, rules: RuleSet, *, name: str, start_line: int = 1, finder: Finder | None = None
) -> Findings:
    """Read a stream to its end; `start_line` is the number of its first line in the file it belongs to."""
    scanner = Scanner(matcher_of(rules), name, start_line, finder)
    while chunk := stream.read(CHUNK):
        scanner.feed(chunk)
    return scanner.finish()


def scan_bytes(data: bytes, rules: RuleSet, *, name: str = "log") -> Findings:
    """`scan_log` over bytes."""
    return scan_log(io.BytesIO(data), rules, name=name)


class _Range(io.BytesIO):
    """The next `left` bytes of a stream."""

    def __init__(self, stream: BinaryIO, left: int) -> None:
        super().__init__()
        self._stream = stream
        self._left = left

    def read(self, size: int | None = -1) -> bytes:
        size = -1 if size is None else size
        data = self._stream.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def scan_file(path: Path | str, rules: RuleSet, *, offset: int = 0, end: int | None = None) -> Findings:
    """Scan the bytes from `offset` to `end` of a file: one launch of an appended log.

    Lines are numbered as in the file.

    OSError when the file cannot be read.
    """
    with open(path, "rb") as stream:
        line = 1
        left = offset
        while left > 0 and (chunk := stream.read(min(CHUNK, left))):
            line += _count_lines(chunk)
            left -= len(chunk)
        part = stream if end is None else _Range(stream, max(0, end - offset))
        return scan_log(part, rules, name=str(path), start_line=line)


def scan_part(path: Path | str, rules: RuleSet, *, start: int, end: int) -> Findings:
    """Scan these bytes of a file without reading what comes before; lines are numbered from 1. OSError as `open`."""
    with open(path, "rb") as stream:
        stream.seek(start)
        return scan_log(_Range(stream, max(0, end - start)), rules, name=str(path))
