"""Which files of a run directory are copied, and under which names."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from slurmtrain.core.spec import Ship

MANIFEST = "manifest.json"
CHECKPOINTS = "checkpoints"
PARTS = ".parts"
_MAX_DEPTH = 12
_MAX_ITEMS = 50_000
_TOP = frozenset({"spec.yaml", "job.sbatch", "launch.sh", "stage_in.sh", "stage_out.sh", "done", "stop", "uploaded"})
_CORE = re.compile(r"core(?:\..*)?|.*\.(?:core|nvcudmp)(?:\..*)?", re.ASCII)  # memory, with whatever was in it
_HEARTBEATS = "nodes"


@dataclass(frozen=True, slots=True)
class Item:
    """One file. ``grows``: lines are appended to it while the run is not over."""

    key: str
    path: Path
    grows: bool


@dataclass(frozen=True, slots=True)
class Source:
    """What a file was when it was looked at. Equal sources have equal content."""

    size: int
    mtime_ns: int
    inode: int


def find_items(run_dir: Path, ship: Ship) -> list[Item]:
    """Regular files only: a link could lead to anything that its owner can read. Never raises."""
    found: list[Item] = []
    for path, relative in _walk(run_dir, ()):
        kind = kind_of(relative)
        if kind in ship.what and len(found) < _MAX_ITEMS:
            found.append(Item(to_key(relative), path, kind == "logs" or path.suffix == ".jsonl"))
    return found


def kind_of(relative: tuple[str, ...]) -> str:
    """``logs``, ``scenes``, ``records``; "" for what is not copied."""
    top, name = relative[0], relative[-1]
    if _CORE.fullmatch(name):
        return ""
    if len(relative) == 1:
        return "records" if top in _TOP else ""
    if top == "logs":
        return "logs"
    if top in ("journal", "submissions"):
        return "records"
    if top != "attempts" or _HEARTBEATS in relative:
        return ""
    if "scene" in relative:
        return "scenes"
    return "logs" if name.endswith(".log") else "records" if name.endswith(".json") else ""


def to_key(relative: Collection[str]) -> str:
    """A key that any storage takes: what is not a plain character is written as in a URL."""
    return "/".join(quote(os.fsencode(part), safe="-_.~+=,@ ()") for part in relative)


def look_at(path: Path) -> Source | None:
    """None for what is gone or is no regular file. Never raises."""
    try:
        info = path.lstat()
    except OSError:
        return None
    return Source(info.st_size, info.st_mtime_ns, info.st_ino) if stat.S_ISREG(info.st_mode) else None


def _walk(folder: Path, above: tuple[str, ...]) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """Every regular file below, in order of names."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        relative = (*above, entry.name)
        if entry.name.startswith(".") or relative in ((CHECKPOINTS,), ("ship",)):
            continue
        try:
            if entry.is_dir(follow_symlinks=False) and len(relative) < _MAX_DEPTH:
                yield from _walk(Path(entry.path), relative)
            elif entry.is_file(follow_symlinks=False):
                yield Path(entry.path), relative
        except OSError:
            continue
