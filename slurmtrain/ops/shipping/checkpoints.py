"""Checkpoints in the remote copy: the newest valid ones, each with a manifest that is written last."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.find import Found, checkpoint_dir, find_all
from slurmtrain.checkpoints.model import Health
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.core.spec import Checkpoint, Ship
from slurmtrain.ops.shipping.content import SourceGoneError, binary_body
from slurmtrain.ops.shipping.items import CHECKPOINTS, Source, look_at, to_key
from slurmtrain.ops.shipping.ledger import Ledger
from slurmtrain.ops.shipping.report import Report
from slurmtrain.remote.model import Body, Remote
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import RunDir

WHOLE = ".whole.json"  # behind a checkpoint's name: what it consists of; without it, it is not whole
_SETTLED_S = 20.0  # since its last write: nobody writes it any more
_MAX_FILES = 20_000


class CheckpointShipment:
    """Keeps the newest few valid checkpoints in the remote copy."""

    def __init__(
        self, run: RunDir, checkpoint: Checkpoint, ship: Ship, remote: Remote, may_go_on: Callable[[], None]
    ) -> None:
        self._run = run
        self._spec = checkpoint
        self._keep = ship.checkpoints
        self._remote = remote
        self._may_go_on = may_go_on

    def send(self, there: dict[str, int], ledger: Ledger, report: Report, *, final: bool) -> None:
        """Send what is missing; then what is older than the newest few is removed there. ``final``: nobody writes."""
        kept: list[str] = []
        for found in find_all(self._run.path, self._spec):
            if len(kept) >= self._keep:
                break
            name = self._name_of(found)
            files = list(_files(found))
            print_ = _fingerprint(files)
            if f"{CHECKPOINTS}/{name}{WHOLE}" in there and ledger.checkpoints.get(name) == print_:
                kept.append(name)
                report.unchanged += 1
                continue
            if not files or not (final or _is_settled(files)) or not self._is_valid(found):
                continue
            if self._send_one(name, files, there, report):
                ledger.checkpoints[name] = print_
                ledger.save()
                kept.append(name)
            else:
                report.late.append(f"{CHECKPOINTS}/{name}")
                report.notes.append(f"checkpoint {name} changed or was deleted while it was sent")
        if len(kept) >= self._keep:
            self._remove_others(set(kept), there, ledger, report)

    def _is_valid(self, found: Found) -> bool:
        verdict = check_apart(found.path, marker=self._spec.marker, parts=found.parts, own=self._run.path / OWN_FORMATS)
        return verdict.health is Health.VALID or (verdict.health is Health.UNKNOWN and self._spec.marker is None)

    def _name_of(self, found: Found) -> str:
        try:
            relative = found.path.relative_to(checkpoint_dir(self._run.path, self._spec))
        except ValueError:
            relative = Path(found.path.name)
        return to_key(relative.parts)

    def _send_one(
        self, name: str, files: list[tuple[str, Path, Source]], there: dict[str, int], report: Report
    ) -> bool:
        objects = {}
        for relative, path, source in files:
            self._may_go_on()
            key = f"{CHECKPOINTS}/{name}{relative}"
            try:
                written = self._remote.write(f"{self._run.run_id}/{key}", binary_body(path, source))
            except SourceGoneError:
                written = None
            if written is None:
                return False
            report.add(written)
            there[key] = written.size
            objects[key] = {"size": written.size, "sha256": written.sha256}
        data = to_json({"checkpoint": name, "written_at": time.time(), "objects": objects})
        key = f"{CHECKPOINTS}/{name}{WHOLE}"
        self._remote.write(f"{self._run.run_id}/{key}", Body(lambda: iter([data])))
        there[key] = len(data)
        self._remote.sweep(f"{self._run.run_id}/{CHECKPOINTS}")  # of those that were deleted before they were sent
        return True

    def _remove_others(self, kept: set[str], there: dict[str, int], ledger: Ledger, report: Report) -> None:
        """First what says that it is whole, then what it consists of."""
        start = f"{CHECKPOINTS}/"
        mine = [f"{start}{name}" for name in kept]
        own = (*(f"{one}/" for one in mine), *(f"{one}." for one in mine))
        others = [key for key in there if key.startswith(start) and key not in mine and not key.startswith(own)]
        for key in sorted(others, key=lambda key: not key.endswith(WHOLE)):
            self._may_go_on()
            self._remote.delete(f"{self._run.run_id}/{key}")
            there.pop(key, None)
            report.deleted += 1
        ledger.checkpoints = {name: print_ for name, print_ in ledger.checkpoints.items() if name in kept}


def _files(found: Found) -> Iterator[tuple[str, Path, Source]]:
    """What a checkpoint consists of: name behind the checkpoint's own, path, and what the file is now.

    Links are followed inside of the checkpoint's folder only.
    """
    if found.parts:
        for part in sorted(found.parts):
            path = found.path.with_name(part)
            if (source := look_at(path)) is not None:
                yield part[len(found.path.name) :], path, source
        return
    if found.path.is_file():
        if (source := look_at(found.path)) is not None:
            yield "", found.path, source
        return
    count = 0
    for folder, names, files in os.walk(found.path):
        names.sort()
        for file in sorted(files):
            path = Path(folder, file)
            real = _resolve_inside(path, found.path)
            if real is not None and (source := look_at(real)) is not None and count < _MAX_FILES:
                count += 1
                yield f"/{to_key(path.relative_to(found.path).parts)}", real, source


def _resolve_inside(path: Path, folder: Path) -> Path | None:
    """The file itself; None where a link leads out of the checkpoint."""
    try:
        real = path.resolve() if path.is_symlink() else path
        return real if real == path or real.is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError):
        return None


def _is_settled(files: list[tuple[str, Path, Source]]) -> bool:
    newest = max(source.mtime_ns for _, _, source in files) / 1e9
    age = time.time() - newest
    return age >= _SETTLED_S or age < -86400  # a date in the future would never settle


def _fingerprint(files: list[tuple[str, Path, Source]]) -> str:
    facts = [(relative, source.size, source.mtime_ns, source.inode) for relative, _, source in files]
    return hashlib.sha256(json.dumps(facts).encode("utf-8", "surrogateescape")).hexdigest()
