"""Which remote copies have been kept long enough, and deleting those.

Deleted is only what this store shipped (its manifest says so), what is complete, and what is older than a floor that
no setting lowers. Checkpoints stay: the newest valid one of a run is never deleted by us.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.core.spec import Ship
from slurmtrain.ops.shipping.items import CHECKPOINTS, MANIFEST
from slurmtrain.ops.shipping.shipper import Order
from slurmtrain.remote.model import Body, Remote
from slurmtrain.remote.open import open_remote
from slurmtrain.remote.pace import Pace
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import RUN_ID

DAY_S = 86400.0
FLOOR_S = 7 * DAY_S


@dataclass(frozen=True, slots=True)
class Gone:
    """A remote copy that was deleted, or would be."""

    run_id: str
    objects: int
    why: str


@dataclass(frozen=True, slots=True)
class Copy:
    """A complete remote copy of this store's: when its run was made and when it was over, seconds since the epoch."""

    run_id: str
    created_at: float
    ended_at: float


def expire_remote(order: Order, pace: Pace, *, dry_run: bool = False, now: float | None = None) -> Iterator[Gone]:
    """Delete, or name, the copies beyond ``keep_days`` and ``keep_runs`` of the order's ``ship``.

    Without either nothing is deleted. Raises ``RemoteError``.
    """
    ship = order.ship
    if ship.keep_days is None and ship.keep_runs is None:
        return
    remote = open_remote(order.url, pace, endpoint=ship.endpoint, profile=ship.profile)
    copies = list(_read_copies(remote, str(order.run.path.parent.parent), str(order.plan.data.get("user", ""))))
    for copy, why in choose_expired(copies, ship, time.time() if now is None else now):
        count = _delete(remote, copy.run_id, dry_run=dry_run)
        if count:
            yield Gone(copy.run_id, count, why)


def choose_expired(copies: list[Copy], ship: Ship, now: float) -> list[tuple[Copy, str]]:
    """Which may go and why, oldest first; never within the floor of a week and twice the time that the run took."""
    chosen = []
    for place, copy in enumerate(sorted(copies, key=lambda copy: copy.ended_at, reverse=True)):
        age_s = now - copy.ended_at
        if age_s < max(FLOOR_S, 2 * (copy.ended_at - copy.created_at)):
            continue
        if ship.keep_days is not None and age_s > ship.keep_days * DAY_S:
            chosen.append((copy, f"it ended {age_s / DAY_S:.0f} days ago, {ship.keep_days} are kept"))
        elif ship.keep_runs is not None and place >= ship.keep_runs:
            chosen.append((copy, f"{place} newer runs are there, {ship.keep_runs} are kept"))
    return chosen[::-1]


def _read_copies(remote: Remote, store: str, user: str) -> Iterator[Copy]:
    for run_id in remote.folders():
        if not RUN_ID.fullmatch(run_id):
            continue
        record = _read_manifest(remote, run_id)
        ours = record.get("run_id") == run_id and record.get("store") == store and record.get("user") == user
        times = record.get("created_at"), record.get("written_at")
        if ours and record.get("complete") is True and all(isinstance(at, int | float) for at in times):
            yield Copy(run_id, float(times[0]), float(times[1]))  # type: ignore[arg-type]


def _read_manifest(remote: Remote, run_id: str) -> Mapping[str, Any]:
    try:
        record = json.loads(remote.read(f"{run_id}/{MANIFEST}") or b"{}")
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _delete(remote: Remote, run_id: str, *, dry_run: bool) -> int:
    """How many objects; the manifest goes last, or stays with what stays."""
    there = {key[len(run_id) + 1 :]: size for key, size in remote.find(run_id).items()}
    kept = {key: size for key, size in there.items() if key.startswith(f"{CHECKPOINTS}/")}
    going = [key for key in there if key not in kept and key != MANIFEST]
    if dry_run:
        return len(going) or (0 if kept else len(there))
    for key in going:
        remote.delete(f"{run_id}/{key}")
    if not kept:
        remote.delete(f"{run_id}/{MANIFEST}")
        return len(going) + 1
    if going:
        record = {**_read_manifest(remote, run_id), "expired_at": time.time()}
        data = to_json({**record, "objects": {key: {"size": size} for key, size in kept.items()}})
        remote.write(f"{run_id}/{MANIFEST}", Body(lambda: iter([data])))
    return len(going)
