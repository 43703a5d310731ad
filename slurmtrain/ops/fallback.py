"""What the batch script wrote down where the agent could not start: it ran the training once and decided nothing."""

from __future__ import annotations

from dataclasses import dataclass

from slurmtrain.store.publish import read_json
from slurmtrain.store.rundir import AttemptDir, RunDir


@dataclass(frozen=True, slots=True)
class Fallback:
    """``stop_sent``: Slurm's warning came, and the script asked the training to save and leave."""

    exit_code: int | None
    stop_sent: bool


def read_fallback(run: RunDir, job_id: str, restart_count: int) -> Fallback | None:
    """The record of one execution, if it ran without the agent. Raises ``StoreError``."""
    record = read_json(run.attempts / f"fallback-{job_id}-{restart_count}.json")
    if record is None:
        return None
    code = record.get("exit_code")
    return Fallback(code if isinstance(code, int) else None, record.get("stop_sent") is True)


def fallback_of(run: RunDir, attempt: AttemptDir) -> Fallback | None:
    """The same, for an attempt that somebody claimed afterwards."""
    owner = attempt.read_owner() or {}
    restart = owner.get("restart_count")
    return read_fallback(run, str(owner.get("job_id", "")), restart if isinstance(restart, int) else 0)
