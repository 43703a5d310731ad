"""The checkpoints of a run, as far as names tell: which is the newest, and setting one aside."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError

_NUMBER = re.compile(r"[0-9]+")
_UNFINISHED = (".tmp", ".part", ".partial", ".incomplete")
SET_ASIDE = ".set-aside-"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint: a file or a folder. ``step`` is the last number in its name, None where it has none."""

    path: Path
    step: int | None
    modified: float


def find_newest(run_dir: Path, checkpoint: Checkpoint) -> Found | None:
    """The checkpoint with the highest step (names without a number: the newest by time). Never raises."""
    found = list(_candidates(checkpoint_dir(run_dir, checkpoint), checkpoint.pattern))
    return max(found, key=lambda c: (c.step if c.step is not None else -1, c.modified), default=None)


def checkpoint_dir(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Where the training writes; a relative path is relative to the run directory."""
    return run_dir / checkpoint.dir


def set_aside(path: Path) -> Path:
    """Rename a checkpoint so that nothing resumes from it; it is kept. Raises ``StoreError``."""
    target = path.with_name(f"{path.name}{SET_ASIDE}{int(time.time())}")
    try:
        return path.rename(target)
    except OSError as exc:
        raise StoreError(f"cannot set the checkpoint {path} aside: {exc.strerror or exc}") from exc


def _candidates(directory: Path, pattern: str) -> Iterator[Found]:
    try:
        paths = sorted(directory.glob(pattern))
    except (OSError, ValueError, NotImplementedError):
        return
    for path in paths:
        name = path.name
        if name.startswith(".") or SET_ASIDE in name or name.endswith(_UNFINISHED):
            continue
        try:
            modified = path.stat().st_mtime
        except OSError:
            continue
        numbers = _NUMBER.findall(path.stem if path.is_file() else name)
        yield Found(path, int(numbers[-1]) if numbers else None, modified)
