"""Orbax (JAX): a folder that is renamed, or marked, when all hosts have written."""

from __future__ import annotations

import os
import re
from pathlib import Path

from slurmtrain.checkpoints.jsonfile import load_json
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

_DEPTH = 3  # levels of folders that hold something but data
_META = "_CHECKPOINT_METADATA"
_MANIFEST = "manifest.ocdbt"
_SHARE = 0.7  # of the time, for the folders
_OCDBT_MAGIC = b"\x0c\xdb\x3a\x2a"  # of TensorStore's manifest.ocdbt
_TMP = re.compile(r".*\.orbax-checkpoint-tmp(?:-\d+)?")


def is_unfinished(name: str) -> bool:
    return _TMP.fullmatch(name) is not None


def is_orbax(entry: Entry) -> bool:
    return (
        bool(entry.names & {_META, "_METADATA", _MANIFEST, "_sharding"}) or _TMP.fullmatch(entry.path.name) is not None
    )


def check_orbax(entry: Entry, reading: Reading) -> None:
    """Committed, its JSON readable, no part under a temporary name, TensorStore's manifests whole."""
    if _TMP.fullmatch(entry.path.name) is not None:
        raise Incomplete(f"{entry.path.name} still has its temporary name")
    unfinished = next((name for name in entry.names if is_unfinished(name)), None)
    if unfinished is not None:
        raise Incomplete(f"{entry.path.name} has a part under its temporary name {unfinished[:80]!r}")
    for looked, (root, folders, names) in enumerate(os.walk(entry.path, onerror=_fail)):
        if looked and reading.out_of_time(_SHARE):
            reading.leave_out(f"no more than {looked} of its folders")
            break
        folders[:] = [] if Path(root).relative_to(entry.path).parts[_DEPTH - 1 :] else [f for f in folders if f != "d"]
        for name in {_META, "_METADATA"} & set(names):
            load_json(Path(root, name), reading, f" in {Path(root).name}")
        if _MANIFEST in names:
            _check_manifest(Path(root))
    if entry.path.name.isdigit():
        reading.step = int(entry.path.name)


def _fail(error: OSError) -> None:
    raise error


def _check_manifest(folder: Path) -> None:
    with (folder / _MANIFEST).open("rb") as manifest:
        head, size = manifest.read(12), manifest.seek(0, 2)
    if head[:4] != _OCDBT_MAGIC or int.from_bytes(head[4:12], "little") != size:
        raise Corrupt(f"{_MANIFEST} in {folder.name} is damaged or was cut")
