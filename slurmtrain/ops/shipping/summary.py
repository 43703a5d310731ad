"""How far a run's remote copy is, from what this side wrote down; the storage is not asked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slurmtrain.core.sizes import say_size
from slurmtrain.core.spec import Spec
from slurmtrain.errors import StoreError
from slurmtrain.ops.shipping.items import CHECKPOINTS, Item, find_items, look_at
from slurmtrain.ops.shipping.ledger import Entry, Ledger, read_state
from slurmtrain.ops.shipping.start import LEASE
from slurmtrain.store.lease import is_held
from slurmtrain.store.publish import exists, read_json
from slurmtrain.store.rundir import RunDir

_LAST = 32503680000.0  # the year 3000


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """``behind`` counts files that are not there as they are here; of a complete copy none, whatever ``prune`` did."""

    url: str  # with the run's id
    complete: bool = False  # the run is over and everything is there
    looked_at: float | None = None  # seconds since the epoch: what was written before is there, but for ``behind``
    files: int = 0  # that belong into it
    behind: int = 0
    behind_bytes: int = 0
    checkpoints: tuple[str, ...] = field(default=())  # whole ones that are there, by name
    problem: str = ""  # why the last pass failed, one sentence
    running: bool = False  # somebody ships right now

    def to_dict(self, looked_at: str | None) -> Mapping[str, Any]:
        return {**asdict(self), "looked_at": looked_at, "checkpoints": list(self.checkpoints)}


def say_copy(copy: RemoteCopy) -> str:
    """One sentence, with the time of the last look."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(copy.looked_at)) if copy.looked_at is not None else ""
    return _how_far(copy) + (f"; last looked at {at}" if at else "")


def _how_far(copy: RemoteCopy) -> str:
    if copy.complete:
        return f"complete in {copy.url}"
    if copy.looked_at is None and not copy.problem:
        return f"nothing is in {copy.url} yet" + (": it is being sent" if copy.running else "")
    if not copy.behind:
        return f"up to date in {copy.url}, and not final yet"
    return f"{copy.behind} of {copy.files} files ({say_size(copy.behind_bytes)}) are not in {copy.url} yet"


def read_copy(run: RunDir, spec: Spec | None) -> RemoteCopy | None:
    """None for a run whose job file ships nothing. Never raises for what is in, or missing from, the run directory."""
    if spec is None or spec.ship.url is None:
        return None
    if exists(run.pruned_file):
        return _read_left(run)
    state, ledger = read_state(run.ship), Ledger(run.ship, spec.ship.url)
    known = state.url == spec.ship.url
    complete = known and state.complete
    items = find_items(run.path, spec.ship)
    missing = (
        [] if complete else [n for item in items if (n := _missing(ledger.entries.get(item.key), item)) is not None]
    )
    return RemoteCopy(
        f"{spec.ship.url}/{run.run_id}",
        complete,
        _time(state.looked_at) if known else None,
        len(items),
        len(missing),
        sum(missing),
        tuple(sorted(ledger.checkpoints)) if CHECKPOINTS in spec.ship.what else (),
        state.problem if known else "",
        is_held(run.ship / LEASE),
    )


def note_copy(run: RunDir, spec: Spec | None) -> Mapping[str, Any]:
    """For ``pruned.json``: what is known of the copy before ``prune`` takes that away."""
    copy = read_copy(run, spec)
    return {} if copy is None else {"url": copy.url, "complete": copy.complete, "looked_at": copy.looked_at}


def _read_left(run: RunDir) -> RemoteCopy | None:
    with contextlib.suppress(StoreError):
        left = (read_json(run.pruned_file) or {}).get("remote_copy")
        if isinstance(left, dict) and left.get("url"):
            return RemoteCopy(str(left["url"]), left.get("complete") is True, _time(left.get("looked_at")))
    return None


def _time(at: object) -> float | None:
    """None for what is no time, whatever a damaged file says."""
    return float(at) if isinstance(at, int | float) and 0 < at < _LAST else None


def _missing(entry: Entry | None, item: Item) -> int | None:
    """Bytes of a file that are not there; None where all of it is, but for half a line at the end of a growing one."""
    source = look_at(item.path)
    if source is None or (entry is None and not source.size):
        return None
    if entry is None or entry.source.inode != source.inode or entry.upto > source.size:
        return source.size
    if item.grows:
        left = source.size - entry.upto
        return left if left and source.mtime_ns != entry.source.mtime_ns else None
    return None if entry.source == source else source.size
