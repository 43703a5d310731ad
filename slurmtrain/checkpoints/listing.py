"""The names in a folder that may be checkpoints, within bounds: a folder may hold a million files of something else."""

from __future__ import annotations

import heapq
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from slurmtrain.checkpoints.pointers import ASIDE, LATEST, TENSORFLOW, TRACKER

SET_ASIDE = f"{ASIDE}-"  # of a name
MOST_READ = 1_000_000  # names of a folder
MOST_LOOKED_AT = 100_000  # of them, of each kind
LOOK_S = 5.0
_LISTINGS = 3  # while checkpoints are deleted under the look at them
_NUMBER = re.compile(r"[0-9]+")
_UNFINISHED = re.compile(
    r"\..*|.*(?:\.(?:tmp|temp|part|partial|incomplete|lock|writing)|~)|tmp[-_.].*|.*\.orbax-checkpoint-tmp(?:-\d+)?"
)
_NO_CHECKPOINT = re.compile(
    rf"{LATEST}(?:\.txt|_universal)?|{re.escape(TRACKER)}|{TENSORFLOW}|zero_to_fp32\.py|events\.out\.tfevents\..*"
    r"|.*\.(?:log|yaml|yml|md|csv|py|sh|lock)|runs|wandb|README.*"
)


class Named(NamedTuple):
    """What bears a name; of a link, what it leads to. ``modified`` in seconds since the epoch."""

    path: Path
    is_file: bool
    modified: float


class Listing(NamedTuple):
    """``left_out``: how many names were not looked at, because there are so many or it took too long."""

    names: list[Named]
    left_out: int


def list_folder(directory: Path, pattern: str) -> Listing:
    """What may be a checkpoint, in no order. Of too many, those with the highest numbers. Never raises."""
    read = _read_names(directory, pattern)
    unfinished = _unfinished_folders(read, directory, pattern)
    kept = [name for name in read if _may_be_one(name) and name.rpartition("/")[0] not in unfinished]
    numbered = {name: step for name in kept if (step := _guess_step(name)) is not None}
    groups = [
        heapq.nlargest(MOST_LOOKED_AT, numbered, key=lambda name: numbered[name]),
        heapq.nlargest(MOST_LOOKED_AT, (name for name in kept if name not in numbered)),
    ]
    deadline, names, looked = time.monotonic() + LOOK_S, [], 0
    others = _Others(read)
    for name in (name for group in sorted(groups, key=len) for name in group):
        if looked and time.monotonic() > deadline:
            break
        looked += 1
        if (found := _look(name, others)) is not None:
            names.append(found)
    return Listing(names, len(kept) - looked)


def step_of(name: str) -> int | None:
    """The last number in a name; None without one."""
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) <= 40 else None


def _read_names(directory: Path, pattern: str) -> list[str]:
    """What the pattern matches. A folder that is deleted meanwhile ends pathlib's search: then it begins anew."""
    for _ in range(_LISTINGS):
        try:
            return sorted(map(str, islice(directory.glob(pattern), MOST_READ)))
        except OSError:
            continue
        except (ValueError, NotImplementedError, RuntimeError):
            break
    return []


def _unfinished_folders(names: Iterable[str], directory: Path, pattern: str) -> frozenset[str]:
    """Those that somebody is writing; a name that the pattern has letter by letter is meant."""
    meant, found = Path(pattern).parts, set()
    for folder in {name.rpartition("/")[0] for name in names}:
        inner = Path(folder).relative_to(directory).parts
        if any(_UNFINISHED.fullmatch(name) for name in inner if name not in meant):
            found.add(folder)
    return frozenset(found)


def _may_be_one(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if SET_ASIDE in name or folder.endswith(ASIDE) or name.endswith(ASIDE):
        return False
    return _UNFINISHED.fullmatch(name) is None and _NO_CHECKPOINT.fullmatch(name) is None


def _guess_step(path: str) -> int | None:
    """Without a look whether it is a file, whose suffix does not count."""
    name = path.rpartition("/")[2]
    step = step_of(name.rpartition(".")[0] or name)
    return step if step is not None else step_of(name)


def _look(name: str, others: _Others) -> Named | None:
    """None for what is gone, and for a name of another one, like last -> step-100."""
    try:
        info = os.lstat(name)
        if stat.S_ISLNK(info.st_mode):
            if others.has(os.path.realpath(name)):
                return None
            info = os.stat(name)  # noqa: PTH116 - a million of them
    except (OSError, RuntimeError):
        return None
    return Named(Path(name), stat.S_ISREG(info.st_mode), info.st_mtime)


class _Others:
    """What lies in the folder under names of its own; worked out where there are links."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names
        self._real: frozenset[str] | None = None

    def has(self, real: str) -> bool:
        if self._real is None:
            self._real = frozenset(self._own_names())
        return real in self._real

    def _own_names(self) -> Iterator[str]:
        folders: dict[str, str] = {}
        for path in self._names:
            folder, _, name = path.rpartition("/")
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            yield f"{folders[folder]}/{name}"
