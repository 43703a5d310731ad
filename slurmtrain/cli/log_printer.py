"""Printing a run's lines: which are wanted, and in which form."""

from __future__ import annotations

import json
import re
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from slurmtrain.cli.output import say_note
from slurmtrain.errors import NotFoundError, StoreError
from slurmtrain.logs.follow import find_tail, for_terminal, read_blocks, read_lines, read_range
from slurmtrain.ops.log_follow import Following
from slurmtrain.ops.logs import LogLine, Origin, Origins, Segment
from slurmtrain.ops.timeline import RunView, read_view

if TYPE_CHECKING:
    from pathlib import Path

    from slurmtrain.logs.search import LineSearch
    from slurmtrain.slurm.client import SlurmClient
    from slurmtrain.store.rundir import RunDir

_ORIGINS_S = 2.0  # how long it is believed whose lines are whose
_PLAIN = re.compile(rb"[\t\n\x20-\x7e]*")  # nothing in it needs to be made harmless


class Printer:
    """Lines to stdout, notices to stderr. Raises ``NotFoundError`` for a node that the run never had."""

    def __init__(
        self,
        view: RunView,
        *,
        rank: int | None = None,
        node: str | None = None,
        search: LineSearch | None = None,
        raw: bool = False,
        as_json: bool = False,
    ) -> None:
        self._view = view
        self._rank = rank
        self._search = search
        self._raw = raw
        self._as_json = as_json
        self._colours = sys.stdout.isatty()
        self._origins = Origins(view)
        self._origins_at = time.monotonic()
        self._node = self._known_node(node)
        self._named = re.compile(rb"(?<![\w.-])" + re.escape((node or "").encode()) + rb"(?![\w-])")
        self._ranks: set[int] = set()  # that printed something

    def _known_node(self, node: str | None) -> str | None:
        """A node that is not known yet may come with the next attempt, but only of a run that goes on."""
        if node is None or self._origins.knows_node(node) or not self._view.state.ended:
            return node
        known = self._origins.all_nodes()
        shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "") if known else "none"
        raise NotFoundError(f"run {self._view.run.run_id} never had node {node[:60]!r}; it had {shown}")

    @property
    def missed(self) -> str | None:
        """Why nothing was printed, where one rank was asked for and others wrote."""
        if self._rank is None or self._rank in self._ranks:
            return None
        if not self._ranks:
            return f"no line says which rank printed it, so none can be told to be of rank {self._rank}"
        return f"rank {self._rank} printed nothing; {len(self._ranks)} ranks did, the highest is {max(self._ranks)}"

    @property
    def _filters(self) -> bool:
        return self._rank is not None or self._node is not None or self._search is not None

    def print_segments(self, segments: list[Segment], tail: int | None) -> None:
        """All that is there. ``tail`` counts the lines that are printed, over all segments."""
        try:
            if tail is not None:
                self._print_tail(segments, tail)
            elif self._filters or self._as_json:
                for line in self._lines(segments):
                    self._print(line)
            else:
                for segment in segments:
                    self._print_whole(segment)
        except (BrokenPipeError, StoreError):
            raise
        except OSError as exc:
            raise StoreError(f"cannot read the log {exc.filename or ''}: {exc.strerror or exc}") from exc
        sys.stdout.buffer.flush()

    def _print_whole(self, segment: Segment) -> None:
        if self._raw:
            for data in read_range(segment.path, segment.start, segment.end):
                sys.stdout.buffer.write(data)
            return
        for block in read_blocks(segment.path, segment.start, segment.end):
            if _PLAIN.fullmatch(block):
                sys.stdout.buffer.write(block)
            else:
                for line in _split(block):
                    self._write(line)

    def _print_tail(self, segments: list[Segment], tail: int) -> None:
        if not self._filters and segments:  # far cheaper: only the end of the newest log is read
            last = segments[-1]
            short = replace(last, start=find_tail(last.path, tail, last.start, last.end))
            lines = deque(((x.path, x.offset, len(x.data)) for x in self._lines([short])), maxlen=tail)
            if len(lines) >= tail or len(segments) == 1:
                self._print_again(lines)
                return
        wanted = (x for x in self._lines(segments) if self._wanted(x))
        self._print_again(deque(((x.path, x.offset, len(x.data)) for x in wanted), maxlen=tail))

    def _print_again(self, places: deque[tuple[Path, int, int]]) -> None:
        """Lines of which only the place was kept: a few thousand may be a GiB."""
        for path, offset, size in places:
            data = b"".join(read_range(path, offset, offset + size))
            self._show(LogLine(path, offset, data))

    def _lines(self, segments: list[Segment]) -> Iterator[LogLine]:
        for segment in segments:
            at = segment.start
            for data in read_lines(segment.path, segment.start, segment.end):
                yield LogLine(segment.path, at, data)
                at += len(data)

    def follow(self, run: RunDir, slurm: SlurmClient, starts: dict[Path, int]) -> None:
        """Until the run is over."""
        for line in Following(run, slurm, starts).lines():
            if line.notice:
                sys.stdout.buffer.flush()
                say_note(line.notice)
            else:
                self._print(line, live=True)
                sys.stdout.buffer.flush()

    def _find_origin(self, line: LogLine, *, live: bool = False) -> Origin:
        if live and time.monotonic() - self._origins_at > _ORIGINS_S:
            self._origins, self._origins_at = Origins(read_view(self._view.run)), time.monotonic()
        return self._origins.find(line)

    def _wanted(self, line: LogLine, *, live: bool = False) -> bool:
        if self._rank is not None or self._node is not None:
            origin = self._find_origin(line, live=live)
            if origin.rank is not None:
                self._ranks.add(origin.rank)
            if self._rank is not None and origin.rank != self._rank:
                return False
            if self._node is not None and not self._is_of_node(line, origin):
                return False
        return self._search is None or self._search.matches(line.data)

    def _is_of_node(self, line: LogLine, origin: Origin) -> bool:
        """What ranks there printed, and what Slurm and we say about it."""
        if origin.node is not None:
            return origin.node == self._node
        return self._named.search(line.data[:4096]) is not None

    def _print(self, line: LogLine, *, live: bool = False) -> None:
        if self._wanted(line, live=live):
            self._show(line, live=live)

    def _show(self, line: LogLine, *, live: bool = False) -> None:
        if self._as_json:
            origin = self._find_origin(line, live=live)
            row = {
                "file": str(line.path),
                "offset": line.offset,
                "attempt": origin.attempt,
                "launch": origin.launch,
                "rank": origin.rank,
                "node": origin.node,
                "text": line.data.decode("utf-8", "replace").rstrip("\n"),
            }
            sys.stdout.buffer.write(json.dumps(row).encode() + b"\n")
        else:
            self._write(line.data)

    def _write(self, line: bytes) -> None:
        if self._raw:
            sys.stdout.buffer.write(line)
            return
        data = for_terminal(line, colours=self._colours)
        if b"\r" in line and not data.endswith(b"\n"):
            data += b"\n"  # a progress bar that goes on: each of its states is a line here
        sys.stdout.buffer.write(data)


def _split(block: bytes) -> Iterator[bytes]:
    """Lines that end with a newline and with nothing else; a carriage return stays in its line."""
    *lines, rest = block.split(b"\n")
    for line in lines:
        yield line + b"\n"
    if rest:
        yield rest
