"""Orbax (JAX): a folder that is renamed, or marked, when all hosts have written."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

_DEPTH = 3  # levels of folders that hold something but data
_META = "_CHECKPOINT_METADATA"
_OCDBT_MAGIC = b"\x0c\xdb\x3a\x2a"  # of TensorStore's manifest.ocdbt
_TMP = re.compile(r".*\.orbax-checkpoint-tmp(?:-\d+)?")


def is_unfinished(name: str) -> bool:
    return _TMP.fullmatch(name) is not None


def is_orbax(entry: Entry) -> bool:
    return (
        bool(entry.names & {_META, "_METADATA", "manifest.ocdbt", "_sharding"})
        or _TMP.fullmatch(entry.path.name) is not None
    )


def check_orbax(entry: Entry, reading: Reading) -> None:
    """Committed, its JSON readable, no part under a temporary name, TensorStore's manifests whole."""
    if _TMP.fullmatch(entry.path.name) is not None:
        raise Incomplete(f"{entry.path.name} still has its temporary name")
    unfinished = next((name for name in entry.names if is_unfinished(name)), None)
    if unfinished is not None:
        raise Incomplete(f"{entry.path.name} has a part under its temporary name {unfinished[:80]!r}")
    for root, folders, _ in os.walk(entry.path):
        folders[:] = [] if Path(root).relative_to(entry.path).parts[_DEPTH - 1 :] else [f for f in folders if f != "d"]
        _check_json(Path(root, _META))
        _check_json(Path(root, "_METADATA"))
        _check_manifest(Path(root))
    if entry.path.name.isdigit():
        reading.step = int(entry.path.name)


def _check_json(path: Path) -> None:
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return
    try:
        json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"{path.name} in {path.parent.name} is damaged or was cut") from exc


def _check_manifest(folder: Path) -> None:
    manifest = folder / "manifest.ocdbt"
    try:
        head = manifest.read_bytes()[:12]
    except FileNotFoundError:
        return
    if head[:4] != _OCDBT_MAGIC or int.from_bytes(head[4:12], "little") != manifest.stat().st_size:
        raise Corrupt(f"manifest.ocdbt in {folder.name} is damaged or was cut")
