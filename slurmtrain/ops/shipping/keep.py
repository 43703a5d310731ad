"""Which remote copies have been kept long enough, and deleting those.

Deleted is only what this store shipped (its manifest says so), what is complete, and what is older than the floor of
``core.retention``, as for ``prune``. Checkpoints stay: the newest valid one of a run is never deleted by us.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.core.retention import Candidate, Limits, choose
from slurmtrain.core.spec import Ship
from slurmtrain.ops.shipping.items import CHECKPOINTS, MANIFEST
from slurmtrain.ops.shipping.shipper import Order
from slurmtrain.remote.model import Body, Remote
from slurmtrain.remote.open import open_remote
from slurmtrain.remote.pace import Pace
from slurmtrain.store.publish import to_json
from slurmtrain.store.rundir import RUN_ID

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Gone:
    """A remote copy that was deleted, or would be."""

    run_id: str
    objects: int
    why: str


def expire_remote(order: Order, pace: Pace, *, dry_run: bool = False, now: float | None = None) -> Iterator[Gone]:
    """Delete, or name, the copies beyond ``keep_days`` and ``keep_runs`` of the order's ``ship``.

    Without either nothing is deleted. Raises ``RemoteError``.
    """
    ship = order.ship
    if ship.keep_days is None and ship.keep_runs is None:
        return
    remote = open_remote(order.url, pace, endpoint=ship.endpoint, profile=ship.profile)
    copies = list(_read_copies(remote, str(order.run.path.parent.parent), str(order.plan.data.get("user", ""))))
    for run_id, (goes, why) in choose(copies, limits_of(ship), time.time() if now is None else now).items():
        if goes and (count := _delete(remote, run_id, dry_run=dry_run)):
            yield Gone(run_id, count, why)


def limits_of(ship: Ship) -> Limits:
    """The limits of ``prune``, for the remote side."""
    return Limits(None if ship.keep_days is None else ship.keep_days * DAY_S, None, ship.keep_runs)


def _read_copies(remote: Remote, store: str, user: str) -> Iterator[Candidate]:
    """Complete copies of this store's and this user's. From submission to end counts as one training cycle."""
    for run_id in remote.folders():
        if not RUN_ID.fullmatch(run_id):
            continue
        record = _read_manifest(remote, run_id)
        ours = record.get("run_id") == run_id and record.get("store") == store and record.get("user") == user
        times = record.get("created_at"), record.get("written_at")
        if ours and record.get("complete") is True and all(isinstance(at, int | float) for at in times):
            created, ended = float(times[0]), float(times[1])  # type: ignore[arg-type]
            yield Candidate(run_id, ended, cycle_s=max(0.0, ended - created))


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
