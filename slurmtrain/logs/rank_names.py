"""Which rank wrote which file of a folder, as far as the names tell.

Some names say that a number is a rank (``rank_3.log``, ``12_3_log.out`` of submitit, ``attempt_0/3/stderr.log`` of
torchrun). Elsewhere a number may be a job id, a date or a node: it counts only where the numbers of the whole folder
look like those of ranks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

_SURE = (
    re.compile(r"(?i)global[._-]?rank[._=-]?(\d{1,6})(?=\D|$)"),
    re.compile(r"(?i)(?:^|(?<!local)[._/-])rank[._=-]?(\d{1,6})(?=\D|$)"),
    re.compile(r"(?i)(?:^|[._/-])(?:task|proc|process|procid|worker|tid|t|p)[._=-]?(\d{1,6})(?=\D|$)"),
    re.compile(r"/attempt_\d+/(\d{1,6})/"),
    re.compile(r"_(\d{1,6})_log\.(?:out|err)(?:\.\w+)?$"),
)
_NUMBERED = re.compile(
    r"(?:^|/|(?<!node)(?<!host)(?<!job)(?<!-\d\d)[._-])(\d{1,6})\.(?:out|err|log|txt|json|jsonl|stdout|stderr)(?:\.\w+)?$"
)


def rank_of_file(path: Path, folder: Path) -> int | None:
    """The rank that the file's name tells by itself, None when it tells none for certain."""
    text = "/" + path.relative_to(folder).as_posix()
    for pattern in _SURE:
        found = pattern.search(text)
        if found:
            return int(found.group(1))
    return None


def ranks_of_files(paths: Sequence[Path], folder: Path) -> list[int | None]:
    """The rank of each file; plain numbers count only where together they look like ranks."""
    sure = [rank_of_file(path, folder) for path in paths]
    if any(rank is not None for rank in sure):
        return sure
    plain = [_NUMBERED.search("/" + path.relative_to(folder).as_posix()) for path in paths]
    numbers = [int(found.group(1)) if found else None for found in plain]
    return numbers if _look_like_ranks(numbers, paths) else sure


def _look_like_ranks(numbers: Sequence[int | None], paths: Sequence[Path]) -> bool:
    """Small numbers from 0 (or 1) on with few gaps, each with at most one file of a kind."""
    known = [number for number in numbers if number is not None]
    kinds = {
        (number, path.suffix, path.parent) for number, path in zip(numbers, paths, strict=True) if number is not None
    }
    return len(set(known)) > 1 and len(kinds) == len(known) and min(known) <= 1 and max(known) < 4 * len(known)
