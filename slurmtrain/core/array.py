"""Job arrays: which tasks ``sbatch --array`` makes, and what a task knows of the array it was submitted in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

MAX_INDEX = 4_000_000  # slurm.conf's MaxArraySize is at most 4000001 (man slurm.conf)
MAX_TASKS = 10_000  # each task is a run with a directory of its own
_PART = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", re.ASCII)
_LIMIT = re.compile(r"[0-9]{1,7}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """What ``--array`` asks for: task numbers in ascending order, and how many may run at once (None: all)."""

    tasks: tuple[int, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One task and the array it belongs to, in the values of ``SLURM_ARRAY_TASK_COUNT``, ``_MIN``, ``_MAX``.

    A task that is submitted again alone is an array of one to Slurm; its program is told of the first array.
    """

    task: int
    count: int
    first: int
    last: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def parse_array(text: str) -> ArrayRequest:
    """Read ``0-7``, ``1,3,5-9:2``, ``0-99%4`` (man sbatch, --array); raises ``ValueError`` with what is wrong."""
    listed, percent, limit = text.strip().partition("%")
    if percent and (not _LIMIT.fullmatch(limit) or int(limit) == 0):
        raise ValueError(f"{text[:60]!r}: after % stands how many tasks may run at once, like 0-7%4")
    tasks: set[int] = set()
    for part in listed.split(","):
        tasks.update(_expand(part.strip(), text))
        if len(tasks) > MAX_TASKS:
            raise ValueError(f"{text[:60]!r} are more than {MAX_TASKS} tasks, each with a run directory of its own")
    return ArrayRequest(tuple(sorted(tasks)), int(limit) if percent else None)


def _expand(part: str, text: str) -> range:
    match = _PART.fullmatch(part)
    if match is None:
        raise ValueError(f"{text[:60]!r} is no list of array tasks: write 0-7, 1,3,5, 0-15:4 or 0-99%4")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    if last < first or step == 0:
        raise ValueError(f"{text[:60]!r}: {part} names no tasks")
    if last > MAX_INDEX:
        raise ValueError(f"{text[:60]!r}: no cluster has array tasks above {MAX_INDEX}")
    return range(first, last + 1, step)[: MAX_TASKS + 1]


def array_task(request: ArrayRequest, task: int) -> ArrayTask:
    """The place of one task in an array."""
    return ArrayTask(task, len(request.tasks), request.tasks[0], request.tasks[-1])


def array_task_from_dict(data: object) -> ArrayTask | None:
    """Inverse of ``ArrayTask.to_dict``; None for anything else."""
    if not isinstance(data, Mapping):
        return None
    values: list[Any] = [data.get(name) for name in ("task", "count", "first", "last")]
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
        return None
    return ArrayTask(*values)


def fold_tasks(tasks: Iterable[int]) -> str:
    """``0,1,2,5`` → ``0-2,5``, as Slurm writes them."""
    parts: list[list[int]] = []
    for task in sorted(set(tasks)):
        if parts and task == parts[-1][-1] + 1:
            parts[-1][1:] = [task]
        else:
            parts.append([task])
    return ",".join("-".join(str(number) for number in part) for part in parts)
