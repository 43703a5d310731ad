"""``<store>/breaker/<cause>/<run id>.json``: which runs failed by which cause of the infrastructure, and when.

Hints: bounded, pruned, and nothing happens where they cannot be read or written.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from itertools import islice
from pathlib import Path

from slurmtrain.core.breaker import Failing
from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json
from slurmtrain.store.rundir import RUN_ID

_MAX_FILES = 200  # looked at
_MAX_BYTES = 1024
_KEPT_S = 6 * 3600.0
_CAUSE = re.compile(r"[a-z0-9_]{1,60}")


def note_failing(store: Path, cause: str, run_id: str, now: float) -> None:
    """Write down that a run failed. Never raises."""
    path = _file(store, cause, run_id)
    if path is None:
        return
    with contextlib.suppress(OSError, StoreError):
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        before = _read(path)
        first = before.first if before is not None and 0 <= now - before.last <= _KEPT_S else now
        replace(path, to_json({"first": first, "last": now}))


def forget_failing(store: Path, cause: str, run_id: str) -> None:
    """The run does not try any more, or it goes on well. Never raises."""
    path = _file(store, cause, run_id)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()


def read_failing(store: Path, cause: str, now: float) -> list[Failing]:
    """Runs that failed so of late; what is old is taken away. Never raises."""
    if not _CAUSE.fullmatch(cause):
        return []
    found = []
    with contextlib.suppress(OSError), os.scandir(store / "breaker" / cause) as entries:
        for entry in islice(entries, _MAX_FILES):
            failing = _read(Path(entry.path))
            if failing is not None and -60 <= now - failing.last <= _KEPT_S:
                found.append(failing)
            elif entry.name.endswith(".json"):
                with contextlib.suppress(OSError):
                    Path(entry.path).unlink()
    return found


def _file(store: Path, cause: str, run_id: str) -> Path | None:
    fits = _CAUSE.fullmatch(cause) and RUN_ID.fullmatch(run_id)
    return store / "breaker" / cause / f"{run_id}.json" if fits else None


def _read(path: Path) -> Failing | None:
    if path.suffix != ".json" or not RUN_ID.fullmatch(path.stem):
        return None
    try:
        known = path.lstat()
        if not stat.S_ISREG(known.st_mode) or known.st_size > _MAX_BYTES:
            return None
        data = read_json(path) or {}
    except (OSError, StoreError):
        return None
    first, last = data.get("first"), data.get("last")
    if not all(isinstance(at, (int, float)) and not isinstance(at, bool) and 0 < at < 1e11 for at in (first, last)):
        return None
    return Failing(path.stem, float(data["first"]), float(data["last"]))
