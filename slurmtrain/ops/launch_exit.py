"""How a launch ended, written down by the agent in the moment in which it ends, before Slurm is asked anything.

An agent that dies between that moment and its decision leaves this behind: whoever comes next (the agent that the batch
script starts again, the gate of the next attempt, the watcher) judges this end, and nobody trains a second time.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, fields
from typing import Any

from slurmtrain.core.events import LaunchEnded
from slurmtrain.core.run import Run, find_attempt
from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json
from slurmtrain.store.rundir import AttemptDir


@dataclass(frozen=True, slots=True)
class LaunchExit:
    """``srun_code`` is srun's own exit code, ``exit_code`` that of the rank that ended first (0 only for success).

    ``stop_reason`` is why the launch had been asked to end, ``log_offset`` and ``log_end`` are its part of the log.
    """

    srun_code: int
    exit_code: int
    started_at: float
    ended_at: float
    log_offset: int
    log_end: int
    stop_reason: str | None = None
    resumed_from: str | None = None
    primary_done: bool = False


def write_launch_exit(attempt: AttemptDir, number: int, end: LaunchExit) -> None:
    """Never raises: without it a launch that was not decided about is started again, as if it had not ended."""
    with contextlib.suppress(OSError, StoreError):
        replace(attempt.launch_exit(number), to_json(asdict(end)))


def read_launch_exit(attempt: AttemptDir, number: int) -> LaunchExit | None:
    """None where the launch has not ended, or where nobody could write it down. Raises ``StoreError``."""
    record: dict[str, Any] | None = read_json(attempt.launch_exit(number))
    if record is None:
        return None
    names = {item.name for item in fields(LaunchExit)}
    try:
        end = LaunchExit(**{name: value for name, value in record.items() if name in names})
        numbers = (end.srun_code, end.exit_code, end.started_at, end.ended_at, end.log_offset, end.log_end)
    except TypeError:
        return None
    return end if all(isinstance(number, int | float) for number in numbers) else None


def find_unrecorded_end(state: Run, attempt: AttemptDir, who: str) -> LaunchEnded | None:
    """The end of an attempt's last launch, as an event, where the journal does not have it. Raises ``StoreError``."""
    known = find_attempt(state, attempt.number)
    launch = known.launches[-1] if known and known.launches else None
    if launch is None or launch.ended is not None:
        return None
    end = read_launch_exit(attempt, launch.number)
    if end is None:
        return None
    return LaunchEnded(
        at=end.ended_at,
        who=who,
        attempt=attempt.number,
        launch=launch.number,
        exit_code=end.exit_code,
        duration_s=round(end.ended_at - end.started_at, 3),
        stop_reason=launch.stop.reason if launch.stop else end.stop_reason,
        log_end=end.log_end,
    )
