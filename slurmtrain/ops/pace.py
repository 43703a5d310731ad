"""How far a running run is: what its launch tells, in the file that its journal names."""

from __future__ import annotations

import time
from typing import Any

from slurmtrain.core.run import Run
from slurmtrain.logs.pace import Begin, Told, read_pace
from slurmtrain.ops.timeline import as_time
from slurmtrain.store.rundir import HEARTBEAT, RunDir, find_node_logs


def read_run_pace(run: RunDir, state: Run) -> Told | None:
    """What the running launch tells; None where none runs, or it tells nothing. Never raises."""
    attempt, launch = state.last_attempt, state.last_launch
    if attempt is None or launch is None or launch.started is None or launch.ended is not None:
        return None
    if launch not in attempt.launches:
        return None
    folder = run.attempt(attempt.number).launch(launch.number)
    log, offset = run.path / launch.started.log_file, launch.started.log_offset
    if nodes := find_node_logs(folder):
        log, offset = nodes[0], 0
    begin = Begin(offset, launch.started.progress or 0, as_time(launch.started.at))
    told = read_pace(folder / HEARTBEAT, log, begin)
    return None if told == Told() else told


def pace_to_dict(told: Told) -> dict[str, Any]:
    """The machine-readable shape; ``expected_end`` in seconds since the epoch."""
    return {
        "step": told.step,
        "target_step": told.target,
        "epoch": told.epoch,
        "loss": told.loss,
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
