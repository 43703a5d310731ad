"""One pass: whatever of a run is not in its remote copy is sent, the manifest last.

An object appears whole or not at all, and is named by what it holds: a pass that dies anywhere is made good by the
next one, on any host. What is there is known from the storage's own list; what it was made from, from the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from slurmtrain.core.spec import Ship, Spec
from slurmtrain.ops.shipping.checkpoints import CheckpointShipment
from slurmtrain.ops.shipping.content import (
    Mask,
    SourceGoneError,
    last_line_end,
    next_line_end,
    part_of_text,
    text_body,
)
from slurmtrain.ops.shipping.items import MANIFEST, PARTS, Item, Source, find_items, look_at
from slurmtrain.ops.shipping.ledger import Entry, Ledger
from slurmtrain.ops.shipping.report import Report
from slurmtrain.remote.model import PART, Body, Remote, Written
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Subject:
    """The run that is copied, and facts for its manifest."""

    run: RunDir
    spec: Spec
    ship: Ship
    facts: dict[str, object]  # name, user, store, created_at


class Shipment:
    """Copies one run to one place, pass by pass."""

    def __init__(
        self, subject: Subject, remote: Remote, mask: Mask, may_go_on: Callable[[], None] = lambda: None
    ) -> None:
        self._subject = subject
        self._run = subject.run
        self._remote = remote
        self._mask = mask
        self._may_go_on = may_go_on  # raises when somebody else has taken over
        self._ledger = Ledger(subject.run.ship, remote.url)
        self._there: dict[str, int] | None = None
        self._checkpoints = CheckpointShipment(subject.run, subject.spec.checkpoint, subject.ship, remote, may_go_on)

    def make_pass(self, state: str, *, final: bool) -> Report:
        """Send what is missing; ``state`` is the run's. ``final``: the run is over, texts become one object each.

        Raises ``RemoteError``, and what ``may_go_on`` raises; what was done until then stays done.
        """
        report = Report()
        items = find_items(self._run.path, self._subject.ship)
        if self._there is None or final:
            self._there = self._list()
        try:
            for item in items:
                self._may_go_on()
                self._send_item(item, report, final=final)
            if "checkpoints" in self._subject.ship.what:
                self._checkpoints.send(self._there, self._ledger, report, final=final)
            report.complete = final and not report.late
            if report.complete:
                self._remote.sweep(self._run.run_id)
            self._forget_gone(items)
            if report.sent or report.deleted or report.complete or MANIFEST not in self._there:
                self._send_manifest(report, state)
        finally:
            self._ledger.save()
        return report

    def _list(self) -> dict[str, int]:
        start = len(self._run.run_id) + 1
        return {key[start:]: size for key, size in self._remote.find(self._run.run_id).items()}

    def _name(self, key: str) -> str:
        return f"{self._run.run_id}/{key}"

    def _send_item(self, item: Item, report: Report, *, final: bool) -> None:
        source = look_at(item.path)
        if source is None:
            return
        entry = self._ledger.entries.get(item.key)
        grows = item.grows and not final
        try:
            upto = last_line_end(item.path, source.size) if grows else source.size
            if self._is_there(item.key, entry, source, upto, grows=grows):
                report.unchanged += 1
            elif grows and upto > PART:
                self._send_parts(item, entry, source, upto, report)
            elif upto or not grows:
                self._send_whole(item, source, upto, report, grows=grows)
        except SourceGoneError:
            report.late.append(item.key)

    def _is_there(self, key: str, entry: Entry | None, source: Source, upto: int, *, grows: bool) -> bool:
        if entry is None or entry.upto != upto or entry.source.inode != source.inode or self._there is None:
            return False
        if entry.bounds:
            last = f"{key}{PARTS}/{len(entry.bounds) - 1:06d}"
            return grows and self._there.get(last) == entry.size
        return (grows or entry.source == source) and self._there.get(key) == entry.size

    def _send_whole(self, item: Item, source: Source, upto: int, report: Report, *, grows: bool) -> None:
        def is_same() -> bool:
            now = look_at(item.path)
            if now is None:
                return False
            return now == source or (item.grows and grows and now.inode == source.inode and now.size >= upto)

        written = self._put(item.key, text_body(item.path, upto, self._mask, is_same), report)
        if written is None:
            report.late.append(item.key)
            return
        self._ledger.put(item.key, Entry(source, upto, written.size, written.sha256))
        for key in [key for key in self._there or () if key.startswith(f"{item.key}{PARTS}/")]:
            self._delete(key, report)

    def _send_parts(self, item: Item, entry: Entry | None, source: Source, upto: int, report: Report) -> None:
        """A long text that still grows: parts of some MiB at ends of lines; only the last one is sent again."""
        known = entry.bounds if entry is not None and entry.source.inode == source.inode and entry.upto <= upto else ()
        bounds = list(known) or [0]
        first = len(bounds) - 1
        while upto - bounds[-1] > PART:
            bounds.append(next_line_end(item.path, bounds[-1] + PART, upto))
        missing = [n for n in range(first) if f"{item.key}{PARTS}/{n:06d}" not in (self._there or ())]
        size = 0
        for number in [*missing, *range(first, len(bounds))]:
            self._may_go_on()
            end = bounds[number + 1] if number + 1 < len(bounds) else upto
            data = part_of_text(item.path, bounds[number], end, self._mask)
            size = len(data)
            self._put(f"{item.key}{PARTS}/{number:06d}", _body(data), report)
            done = tuple(bounds[: number + 1])
            if number >= first:
                self._ledger.put(item.key, Entry(source, end, size, "", done))
        if item.key in (self._there or ()):
            self._delete(item.key, report)

    def _put(self, key: str, body: Body, report: Report) -> Written | None:
        written = self._remote.write(self._name(key), body)
        if written is not None:
            report.add(written)
            if self._there is not None:
                self._there[key] = written.size
        return written

    def _delete(self, key: str, report: Report) -> None:
        self._remote.delete(self._name(key))
        report.deleted += 1
        if self._there is not None:
            self._there.pop(key, None)

    def _forget_gone(self, items: list[Item]) -> None:
        """What was deleted here, by ``prune`` or by hand, stays in the remote copy."""
        left = {item.key for item in items}
        for key in [key for key in self._ledger.entries if key not in left and key not in (self._there or ())]:
            del self._ledger.entries[key]

    def _send_manifest(self, report: Report, state: str) -> None:
        there, entries = self._there or {}, self._ledger.entries
        objects = {
            key: {"size": size} | ({"sha256": entries[key].sha256} if key in entries and entries[key].sha256 else {})
            for key, size in sorted(there.items())
            if key != MANIFEST
        }
        record = {
            "format": 1,
            "run_id": self._run.run_id,
            **self._subject.facts,
            "state": state,
            "complete": report.complete,
            "written_at": time.time(),
            "objects": objects,
        }
        written = self._remote.write(self._name(MANIFEST), _body(to_json(record)))
        if written is not None and self._there is not None:
            self._there[MANIFEST] = written.size


def _body(data: bytes) -> Body:
    return Body(lambda: iter([data]))
