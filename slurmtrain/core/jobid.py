"""Job ids as Slurm writes them: ``123``, an array task ``123_4``, a het component ``123+1``."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERN = re.compile(r"([1-9][0-9]{0,9})(?:_([0-9]{1,9})|\+([0-9]{1,4}))?", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class JobId:
    """One Slurm job. For an array task ``base`` is the array's id: the only form that requeues one task alone."""

    base: int
    array_task: int | None = None
    het_offset: int | None = None

    def __str__(self) -> str:
        if self.array_task is not None:
            return f"{self.base}_{self.array_task}"
        if self.het_offset is not None:
            return f"{self.base}+{self.het_offset}"
        return str(self.base)


def parse_job_id(text: str) -> JobId:
    """Read a job id; raises ``ValueError`` for anything else (a range, a list, an empty text)."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a Slurm job id")
    base, task, offset = match.groups()
    return JobId(int(base), int(task) if task else None, int(offset) if offset else None)
