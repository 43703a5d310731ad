"""What the live tests attack with: the processes of a run by what they are, and kills of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster import wait_until
from runs import LiveRun, trainer


def steady(store: Path, steps: int = 60, *more: str) -> list[str]:
    return trainer(store, "--steps", str(steps), "--pace", "0.1", "--checkpoint-every", "5", *more)


def crash_once(step: int) -> tuple[str, ...]:
    return ("--fail", "signal:SEGV", "--fail-launches", "1", "--fail-at", str(step))


def batch_side(run: LiveRun, what: str) -> list[Any]:
    """Processes of the batch script's side: ``agent``, ``srun``, ``companion`` (its srun), ``shell``, ``launch``."""
    found = []
    for process in run.cluster.processes(run.job_id):
        words = process.argv
        if process.in_step:
            continue
        is_srun = words[0].endswith("srun")
        kind = (
            "agent" if "attempt" in words
            else "companion" if is_srun and "companion" in words
            else "srun" if is_srun
            else "shell" if any("slurm_script" in word for word in words)
            else "launch" if any(word.endswith("launch.sh") for word in words)
            else ""
        )  # fmt: skip
        if kind == what:
            found.append(process)
    return found


def kill(run: LiveRun, what: str) -> None:
    processes = batch_side(run, what)
    assert processes, f"no {what} runs"
    for process in processes:
        run.cluster.signal_process(process, signal.SIGKILL)


def launches_alive(run: LiveRun) -> set[str]:
    return {p.environ["SLURMTRAIN_LAUNCH_KEY"] for p in run.rank_processes()}


def watch_launches(run: LiveRun, seconds: float) -> None:
    """Fail if ranks of two launches are ever seen together. A process seen while it ends does not count: look twice."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if len(launches_alive(run)) > 1:
            time.sleep(0.3)
            assert len(launches_alive(run)) <= 1, [p.argv for p in run.rank_processes()]
        time.sleep(0.1)


def parent(pid: int) -> int:
    """The parent's pid; of a rank and of the batch script that is their slurmstepd."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill_stepd(pid: int) -> None:
    """SIGKILL of the slurmstepd above a task."""
    above = parent(pid)
    assert b"slurmstepd" in Path(f"/proc/{above}/cmdline").read_bytes()
    os.kill(above, signal.SIGKILL)


def watch_until(run: LiveRun, condition: Callable[[], object], what: str, timeout_s: float = 90) -> None:
    """Somebody looks after the run, as cron would, until the condition is true."""

    def look() -> object:
        run.watch_once()
        return condition()

    wait_until(look, timeout_s, what, 2)


def companions(run: LiveRun) -> list[Any]:
    """The companions themselves, one on each node."""
    return [p for p in run.cluster.processes(run.job_id) if "companion" in p.argv and p.in_step]
