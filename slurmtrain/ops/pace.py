"""How far a running run is: what its launch tells, in the file that its journal names."""

from __future__ import annotations

import math
import time
from typing import Any

from slurmtrain.core.run import Run
from slurmtrain.logs.pace import Begin, Mark, Told, read_pace
from slurmtrain.logs.times import read_marks
from slurmtrain.ops.timeline import as_time
from slurmtrain.store.rundir import HEARTBEAT, RunDir, find_node_logs

_MARKS = 1 << 16  # bytes of them: those of the first minutes


def read_run_pace(run: RunDir, state: Run) -> Told | None:
    """What the running launch tells; None where none runs, or it tells nothing. Never raises."""
    launch = state.last_launch
    return None if launch is None or launch.ended is not None else _read_last_launch(run, state)


def ended_as_nan(run: RunDir, state: Run) -> bool:
    """Whether the last loss that the last launch told is no finite number. Never raises."""
    told = _read_last_launch(run, state)
    return told is not None and told.loss is not None and not math.isfinite(told.loss)


def _read_last_launch(run: RunDir, state: Run) -> Told | None:
    attempt, launch = state.last_attempt, state.last_launch
    if attempt is None or launch is None or launch.started is None or launch not in attempt.launches:
        return None
    folder = run.attempt(attempt.number).launch(launch.number)
    log, offset = run.path / launch.started.log_file, launch.started.log_offset
    end = launch.ended.log_end if launch.ended is not None and launch.ended.log_end else None
    column = 0
    if nodes := find_node_logs(folder):
        log, offset, end, column = nodes[0], 0, None, 1

    def marks() -> list[Mark]:
        return [(at, sizes[column]) for at, sizes in read_marks(folder, _MARKS) if len(sizes) > column]

    begin = Begin(offset, launch.started.progress or 0, as_time(launch.started.at))
    told = read_pace(folder / HEARTBEAT, log, begin, end, marks)
    return None if told == Told() else told


def pace_to_dict(told: Told) -> dict[str, Any]:
    """The machine-readable shape; ``expected_end`` in seconds since the epoch."""
    return {
        "step": told.step,
        "target_step": told.target,
        "epoch": told.epoch,
        "loss": told.loss if told.loss is not None and math.isfinite(told.loss) else None,
        "samples_per_s": _round(told.samples_per_s),
        "steps_per_s": _round(told.steps_per_s),
        "told_at": told.at,
        "expected_end": told.expected_end,
    }


def describe_pace(told: Told, now: float) -> str:
    """A few words: ``step 120 of 500, loss 0.0312, 3.2 steps/s, ends about 14:05``."""
    words = []
    if told.step is not None:
        words.append(f"step {told.step}" + (f" of {told.target}" if told.target is not None else ""))
    if told.epoch is not None:
        words.append(f"epoch {told.epoch:g}")
    if told.loss is not None:
        words.append(f"loss {told.loss:.4g}")
    if told.samples_per_s is not None:
        words.append(f"{told.samples_per_s:.3g} samples/s")
    elif told.steps_per_s is not None:
        fast = told.steps_per_s >= 1
        words.append(f"{told.steps_per_s:.3g} steps/s" if fast else f"{1 / told.steps_per_s:.3g} s/step")
    if told.expected_end is not None:
        words.append(f"ends about {_when(told.expected_end, now)}")
    return ", ".join(words)


def _when(at: float, now: float) -> str:
    then, today = time.localtime(at), time.localtime(now)
    return time.strftime("%H:%M" if then[:3] == today[:3] else "%H:%M on %d %b", then)


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
