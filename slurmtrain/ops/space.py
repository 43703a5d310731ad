"""How much room the store has: a word before it is full, and a clear one when it is."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import SlurmtrainError
from slurmtrain.hosts.local import Host

_GIB = 1 << 30
_FULL_BYTES, _FULL_FILES = 1 << 20, 10
_LOW_BYTES, _LOW_SHARE, _LOW_MOST = _GIB, 0.05, 20 * _GIB  # 5 % of a small disk; of a large one 20 GiB are enough
_LOW_FILES = 10_000
_QUOTA_S = 5.0  # a file server that does not answer must not keep anybody waiting
_ROW = re.compile(r"^\s*\S+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s+\d+\s+(\d+)\*?\s+(\d+)\s+(\d+)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Space:
    """What may still be written; ``files`` is None where the file system has no fixed number of them."""

    free: int
    total: int
    files: int | None = None
    by: str = ""  # "your quota" where that is the bound, "" for the file system

    @property
    def is_full(self) -> bool:
        return self.free < _FULL_BYTES or (self.files is not None and self.files < _FULL_FILES)

    @property
    def is_low(self) -> bool:
        low = max(_LOW_BYTES, min(self.total * _LOW_SHARE, _LOW_MOST))
        return self.free < low or (self.files is not None and self.files < _LOW_FILES)


def look_at_space(store: Path, host: Host | None = None) -> Space | None:
    """The room in a store, or where it will be made; with ``host`` also what the user's quota leaves.

    None where it cannot be told. Never raises.
    """
    folder = next((path for path in (store, *store.parents) if path.is_dir()), None)
    try:
        found = os.statvfs(folder) if folder is not None else None
    except OSError:
        found = None
    if found is None or not found.f_blocks:
        return None
    files = found.f_favail if found.f_files else None
    space = Space(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, files)
    quota = _read_quota(folder, host) if host is not None and folder is not None else None
    return quota if quota is not None and quota.free < space.free else space


def _read_quota(folder: Path, host: Host) -> Space | None:
    """What ``quota`` says of the file system; most sites have none, and then it says nothing."""
    try:
        done = host.run(["quota", "-w", "-p", "-f", str(_mount_of(folder))], timeout_s=_QUOTA_S)
    except SlurmtrainError:
        return None
    return parse_quota(done.stdout)


def parse_quota(text: str) -> Space | None:
    """The first row with limits. Source: man quota; ``-w -p`` gives a line of numbers for each file system.

    They are blocks of 1 KiB, their soft and hard limit and grace, and the same of files.
    """
    for used, soft, hard, files, file_soft, file_hard in _ROW.findall(text):
        limit, file_limit = int(hard) or int(soft), int(file_hard) or int(file_soft)
        if limit or file_limit:
            free = max(0, limit - int(used)) * 1024 if limit else 1 << 62
            left = max(0, file_limit - int(files)) if file_limit else None
            return Space(free, (limit or 1 << 52) * 1024, left, "quota")
    return None


def _mount_of(folder: Path) -> Path:
    here = folder.resolve()
    return next((path for path in (here, *here.parents) if path.is_mount()), Path("/"))


def warn_of_space(store: Path, space: Space | None) -> str:
    """A sentence for a person, "" while there is room."""
    if space is None or not space.is_low:
        return ""
    files = space.files is not None and (space.files < _LOW_FILES)
    left = f"{space.files} files" if files and space.free > _LOW_BYTES else f"{max(0, space.free) / 2**20:.0f} MiB"
    where = f"your quota on {store}" if space.by else f"the store {store}"
    if space.is_full:
        return (
            f"{where} is full ({left} left): trainings go on, but what they and their jobs write down now is lost or "
            "comes late; `slurmtrain prune --older-than 30d` makes room"
        )
    return f"{where} is nearly full ({left} left); `slurmtrain prune --older-than 30d` makes room"
