"""Deleting so that a kill at any moment leaves nothing half: out of the way by a rename first, then away.

What was set aside has a name that nobody takes for a run, a log or a checkpoint; the next prune finishes it. Links are
never followed: ``shutil.rmtree`` goes down by descriptors and refuses a link.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Collection
from pathlib import Path

from slurmtrain.errors import StoreError

PREFIX = ".pruned-"
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8,12}\.tmp")  # as store.publish and others name what they write


def set_aside(path: Path) -> Path:
    """Give a file or folder (or a link itself) a name beside it that nobody reads. Raises ``StoreError``."""
    target = path.with_name(f"{PREFIX}{path.name[:100]}-{secrets.token_hex(4)}")
    try:
        path.rename(target)
    except OSError as exc:
        raise StoreError(f"cannot move {path} out of the way: {exc.strerror or exc}") from exc
    return target


def put_back(aside: Path, path: Path) -> None:
    """Undo ``set_aside``. Raises ``StoreError``."""
    try:
        aside.rename(path)
    except OSError as exc:
        raise StoreError(f"cannot put {aside} back to {path}: {exc.strerror or exc}") from exc


def delete(aside: Path) -> None:
    """Delete what was set aside; what cannot be deleted now is left to the next call. Raises ``StoreError``."""
    if not aside.name.startswith(PREFIX):
        raise ValueError(f"{aside} was not set aside")
    try:
        if stat.S_ISDIR(aside.lstat().st_mode):
            shutil.rmtree(aside)
        else:
            aside.unlink()
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"cannot delete {aside}: {exc.strerror or exc}") from exc


def left_aside(folder: Path) -> list[Path]:
    """What an earlier call could not delete, in this folder; nothing behind a link. Never raises."""
    with contextlib.suppress(OSError):
        if folder.is_symlink():
            return []
        return sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX))
    return []


def half_written(folder: Path, names: Collection[str]) -> list[Path]:
    """What a kill left of files with these names, which are written beside their place first. Never raises."""
    with contextlib.suppress(OSError):
        if not folder.is_symlink():
            return [path for path in folder.iterdir() if (m := _TEMPORARY.fullmatch(path.name)) and m[1] in names]
    return []


def measure(path: Path) -> tuple[int, int]:
    """Bytes on the disk and number of files below a folder, or of a file; links count as themselves. Never raises."""
    size = count = 0
    with contextlib.suppress(OSError):
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return found.st_blocks * 512, 1
    pending = [path]
    while pending:
        with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(Path(entry.path))
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                        count += 1
    return size, count
