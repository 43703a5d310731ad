"""What the batch script wrote down where the agent could not start: it ran the training once and decided nothing.

An agent that could not write the store when it began, and trained all the same, writes the same record if it can then.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json
from slurmtrain.store.rundir import AttemptDir, RunDir


@dataclass(frozen=True, slots=True)
class Fallback:
    """``stop_sent``: Slurm's warning came, and the script asked the training to save and leave."""

    exit_code: int | None
    stop_sent: bool


def read_fallback(run: RunDir, job_id: str, restart_count: int) -> Fallback | None:
    """The record of one execution, if it ran without the agent. Raises ``StoreError``."""
    record = read_json(_path(run, job_id, restart_count))
    if record is None:
        return None
    code = record.get("exit_code")
    return Fallback(code if isinstance(code, int) else None, record.get("stop_sent") is True)


def write_fallback(run: RunDir, job_id: str, restart_count: int, exit_code: int, *, stop_sent: bool) -> bool:
    """Whether it could be written; never raises."""
    record = {"job_id": job_id, "restart_count": restart_count, "exit_code": exit_code, "stop_sent": stop_sent}
    with contextlib.suppress(OSError, StoreError):
        replace(_path(run, job_id, restart_count), to_json(record))
        return True
    return False


def _path(run: RunDir, job_id: str, restart_count: int) -> Path:
    return run.attempts / f"fallback-{job_id}-{restart_count}.json"


def fallback_of(run: RunDir, attempt: AttemptDir) -> Fallback | None:
    """The same, for an attempt that somebody claimed afterwards."""
    owner = attempt.read_owner() or {}
    restart = owner.get("restart_count")
    return read_fallback(run, str(owner.get("job_id", "")), restart if isinstance(restart, int) else 0)
