"""What runs of one store learnt about the cluster: how long Slurm cleans up behind a job, for each partition.

``<store>/learnt/clean-up.<cluster>.<partition>.json``, a hint that may be lost, damaged or wrong at any time.
"""

from __future__ import annotations

import contextlib
import re
import stat
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json

_KEPT = 8
_MAX_S = 3600.0
_MAX_AGE_S = 30 * 86400.0
_SAFE = re.compile(r"[A-Za-z0-9_-]{1,60}")


def read_clean_ups(store: Path, cluster: str, partition: str) -> list[float]:
    """Seconds, oldest first; empty where nothing can be read. Never raises."""
    with contextlib.suppress(StoreError):
        return [seconds for seconds, _ in _read(_path(store, cluster, partition))]
    return []


def add_clean_up(store: Path, cluster: str, partition: str, seconds: float, now: float) -> None:
    """Remember one more; of two who write at once one wins. Never raises."""
    path = _path(store, cluster, partition)
    with contextlib.suppress(StoreError, OSError):
        path.parent.mkdir(mode=0o755, exist_ok=True)
        kept = [(s, at) for s, at in _read(path) if 0 <= now - at <= _MAX_AGE_S]
        rows = [*kept, (round(seconds, 1), now)][-_KEPT:]
        replace(path, to_json({"seconds": [s for s, _ in rows], "at": [at for _, at in rows]}))


def _read(path: Path) -> list[tuple[float, float]]:
    with contextlib.suppress(OSError):
        if not stat.S_ISREG(path.lstat().st_mode):
            return []
    data = read_json(path) or {}
    seconds, at = data.get("seconds"), data.get("at")
    if not isinstance(seconds, list) or not isinstance(at, list):
        return []
    pairs = zip(seconds[-_KEPT:], at[-_KEPT:], strict=False)
    return [(float(s), float(t)) for s, t in pairs if _is_number(s) and _is_number(t) and 0 <= s <= _MAX_S]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _path(store: Path, cluster: str, partition: str) -> Path:
    return store / "learnt" / f"clean-up.{_word(cluster)}.{_word(partition)}.json"


def _word(name: str) -> str:
    return name if _SAFE.fullmatch(name) else "other"
