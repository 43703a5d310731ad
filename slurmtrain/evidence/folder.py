"""A folder that a collector has filled: how much is in it, and making it harmless."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILES = 500
_MAX_DEPTH = 8
_LISTED = 40


@dataclass(frozen=True, slots=True)
class Tidied:
    """What a collector left: ``files`` are the first names, below its folder."""

    size: int
    count: int
    files: tuple[str, ...]
    truncated: bool


def measure(folder: Path) -> int:
    """Bytes of all regular files below, symbolic links not followed; more than one can read counts as far as it is."""
    total = 0
    for _, info in walk(folder):
        total += info.st_size if stat.S_ISREG(info.st_mode) else 0
    return total


def tidy(folder: Path, size_limit: int) -> Tidied:
    """Remove links, devices and FIFOs, empty files and what is beyond the limits; others may read nothing of it."""
    size, truncated = 0, False
    files: list[str] = []
    for path, info in sorted(walk(folder)):
        with contextlib.suppress(OSError):
            if not stat.S_ISREG(info.st_mode) or not info.st_size or len(files) >= MAX_FILES:
                truncated = truncated or (stat.S_ISREG(info.st_mode) and info.st_size > 0)
                path.unlink()
                continue
            kept = min(info.st_size, size_limit - size)
            truncated = truncated or kept < info.st_size
            if kept <= 0:
                path.unlink()
                continue
            if kept < info.st_size:
                os.truncate(path, kept)
            path.chmod(0o600)
            size += kept
            files.append(path.relative_to(folder).as_posix())
    with contextlib.suppress(OSError):
        folder.rmdir()  # only where it is empty
    return Tidied(size, len(files), tuple(files[:_LISTED]), truncated)


def walk(folder: Path, depth: int = 0) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below that is no folder. What cannot be listed is passed over."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if not stat.S_ISDIR(info.st_mode):
            yield Path(entry.path), info
        elif depth < _MAX_DEPTH:
            yield from walk(Path(entry.path), depth + 1)
