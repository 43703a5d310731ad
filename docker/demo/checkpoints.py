"""Checkpoints that are whole or not there: written beside, flushed to disk, renamed, and checked when read."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float64]]


class CheckpointError(Exception):
    """A checkpoint that cannot be read, or does not fit the model."""


def save(folder: Path, step: int, arrays: Arrays, facts: dict[str, Any], keep: int = 3) -> Path:
    """Write ``step-000050.npz`` and forget the oldest; ``facts`` are plain values kept beside the arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{step:06d}.npz"
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    facts = {**facts, "step": step, "sha256": _digest(arrays)}
    content: dict[str, Any] = {"facts": np.array(json.dumps(facts)), **{f"a_{name}": a for name, a in arrays.items()}}
    with temporary.open("wb") as stream:
        np.savez(stream, **content)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(final)
    _sync_folder(folder)
    for old in sorted(folder.glob("step-*.npz"))[:-keep]:
        old.unlink(missing_ok=True)
    return final


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """Arrays and facts of a checkpoint. Raises ``CheckpointError``."""
    try:
        with np.load(path, allow_pickle=False) as data:
            facts: dict[str, Any] = json.loads(str(data["facts"]))
            arrays = {name[2:]: data[name] for name in data.files if name.startswith("a_")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as exc:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {exc}") from exc
    if facts.get("sha256") != _digest(arrays):
        raise CheckpointError(f"the checkpoint {path} is damaged: its checksum does not fit its content")
    return arrays, facts


def _digest(arrays: Arrays) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
