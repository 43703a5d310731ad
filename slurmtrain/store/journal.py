"""The run's journal: one file per writer process, merged on reading.

A line is one event with a sequence number. A writer's numbers go on from the highest it has read (a Lamport clock), so
that what it wrote sorts behind what it knew; clocks of hosts play no part. A torn last line, and any line that is no
event, is passed over.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurmtrain.core.events import Event, event_from_dict, event_to_dict
from slurmtrain.errors import StoreError
from slurmtrain.hosts.files import open_file
from slurmtrain.store.publish import replace

_MAX_LINE = 1 << 20  # bytes; a journal line is far shorter, a longer one is garbage
_MAX_SEQUENCE = 1 << 53
MERGED = "000-merged.jsonl"  # sorts before what it was merged from: its lines win over theirs


class JournalWriter:
    """Appends to the one file of this process; the file appears with the first event."""

    def __init__(self, directory: Path, writer: str) -> None:
        self._directory = directory
        self._writer = re.sub(r"[^A-Za-z0-9._-]", "_", writer)[:100]
        self._path = directory / f"{self._writer}.jsonl"
        self._sequence: int | None = None
        self._torn = False  # the last write failed and may have left half a line

    def append(self, *events: Event, sync: bool = False) -> None:
        """Write events behind everything that is known. With ``sync`` they are on the disk when this returns.

        Raises ``StoreError``; the caller decides whether the work goes on without a record.
        """
        try:
            if self._sequence is None:
                self.catch_up()
            lines = b"".join(self._line(event) for event in events)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                _write_all(descriptor, b"\n" + lines if self._torn else lines)
                if sync:
                    os.fsync(descriptor)
                self._torn = False
            finally:
                os.close(descriptor)
        except OSError as exc:
            self._torn = True
            raise StoreError(f"cannot write the journal {self._path}: {exc.strerror or exc}") from exc

    def catch_up(self) -> None:
        """Number what comes next behind everything that others have written by now."""
        lines = _read_lines(self._directory, [])
        highest = max((sequence for sequence, _, _ in lines), default=0)
        self._sequence = max(highest, self._sequence or 0)

    def _line(self, event: Event) -> bytes:
        self._sequence = (self._sequence or 0) + 1
        record = {"seq": self._sequence, "writer": self._writer, **event_to_dict(event)}
        return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    written = 0
    while written < len(data):  # a nearly full disk takes a part
        written += os.write(descriptor, data[written:])


def read_journal(directory: Path, *, skip_unreadable: bool = False) -> list[Event]:
    """All events of a run in order: by attempt, then by sequence number. An absent journal is an empty one.

    Raises ``StoreError`` for what cannot be read, or passes it over.
    """
    events, damage = read_what_can_be_read(directory)
    if damage and not skip_unreadable:
        raise StoreError(damage[0])
    return events


def read_what_can_be_read(directory: Path) -> tuple[list[Event], list[str]]:
    """The events of all files that can be read, in order, and a sentence for each that cannot."""
    damage: list[str] = []
    lines = {_identity(*line): line for line in reversed(list(_read_lines(directory, damage)))}
    ordered = sorted(lines.values(), key=lambda line: (line[2].attempt, line[0], line[1]))
    return [event for _, _, event in ordered], damage


def count_events(directory: Path) -> int:
    """Lines that are events; those that stand twice while files are merged count twice, unreadable files not at all."""
    return sum(1 for _ in _read_lines(directory, []))


def _identity(sequence: int, writer: str, event: Event) -> tuple[object, ...]:
    """The same for an event and its copy in a merged file."""
    return (sequence, writer, event.kind, event.attempt, event.launch, event.at)


def merge_journal(directory: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Make one file of the journal of a run that has ended; ``change`` may rewrite its records.

    The new file is whole before an old one goes, and until all are gone readers pass over what they hold twice.
    Raises ``StoreError``, and does nothing, where a file cannot be read.
    """
    found: dict[tuple[object, ...], tuple[int, int, str, bytes]] = {}
    merged: list[tuple[Path, int]] = []
    try:
        for path in sorted(p for p in directory.iterdir() if p.suffix == ".jsonl"):
            with open_file(path) as stream:
                data = stream.read()
            merged.append((path, len(data)))
            for line in data.splitlines(keepends=True):
                parsed = _parse_line(line) if len(line) <= _MAX_LINE else None
                if parsed is not None:
                    record = json.dumps(change(json.loads(line)), ensure_ascii=True, separators=(",", ":"))
                    order = (parsed[2].attempt, parsed[0], parsed[1], record.encode() + b"\n")
                    found.setdefault(_identity(*parsed), order)
        replace(directory / MERGED, b"".join(line for *_, line in sorted(found.values())))
        for path, size in merged:
            if path.name != MERGED and path.stat().st_size == size:
                path.unlink()
    except OSError as exc:
        raise StoreError(f"cannot merge the journal in {directory}: {exc.strerror or exc}") from exc


def _read_lines(directory: Path, damage: list[str]) -> Iterator[tuple[int, str, Event]]:
    try:
        paths = sorted(p for p in directory.iterdir() if p.suffix == ".jsonl")
    except FileNotFoundError:
        return
    except OSError as exc:
        damage.append(f"cannot read the journal in {directory}: {exc.strerror or exc}")
        return
    for path in paths:
        try:
            yield from _read_file(path)
        except StoreError as exc:
            damage.append(str(exc))


def _read_file(path: Path) -> Iterator[tuple[int, str, Event]]:
    try:
        with open_file(path) as stream:
            while line := stream.readline(_MAX_LINE):
                parsed = _parse_line(line)
                if parsed is not None:
                    yield parsed
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"cannot read the journal {path}: {exc.strerror or exc}") from exc


def _parse_line(line: bytes) -> tuple[int, str, Event] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record: Any = json.loads(line)
        sequence = int(record["seq"])
        if not 0 <= sequence < _MAX_SEQUENCE:
            return None
        return sequence, str(record.get("writer", "")), event_from_dict(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
