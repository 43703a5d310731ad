"""Ending what an earlier launch left behind, on all nodes, before the next one may start.

srun can die and leave its step running (tried: ranks trained on for hours, and the next srun waited for their
resources), and so can an agent. What runs on this node is found in /proc; for the others only Slurm's list of steps
tells.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection

from slurmtrain.agent.processes import end_processes, find_launch_processes, find_starters
from slurmtrain.agent.say import say
from slurmtrain.core.jobid import JobId
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import SlurmClient

_BOUND_S = 300.0  # a step that outlives KILL so long hangs in the kernel
_REPEAT_S = 5.0


def end_leftovers(job_id: JobId, raw_job_id: str, slurm: SlurmClient, keep: Collection[str] = ()) -> bool:
    """KILL all steps of the job but those to ``keep``; True once they are gone, False after a bound.

    What starts steps is killed first, so that none appears afterwards. Where Slurm does not answer nothing is known of
    the other nodes: it is asked again until the bound.
    """
    end_processes(find_starters(raw_job_id), signal.SIGKILL)
    deadline = time.monotonic() + _BOUND_S
    next_kill = 0.0
    while True:
        here = [process for process in find_launch_processes(raw_job_id) if process.step not in keep]
        end_processes(here, signal.SIGKILL)
        steps = _find_steps(slurm, job_id, keep)
        if steps is not None and not steps and not here:
            return True
        if time.monotonic() >= deadline:
            say(f"steps {', '.join(steps) or '?'} of the job cannot be ended" if steps else "Slurm does not answer")
            return False
        if steps and time.monotonic() >= next_kill:
            next_kill = time.monotonic() + _REPEAT_S
            for step in steps:
                with contextlib.suppress(SlurmtrainError):
                    slurm.signal_step(job_id, step, "KILL")
        time.sleep(0.3)


def _find_steps(slurm: SlurmClient, job_id: JobId, keep: Collection[str]) -> list[str] | None:
    """Steps that srun made; None where Slurm does not answer. ``batch``, ``extern``… are none."""
    try:
        return [step for step in slurm.steps(job_id) if step.isdigit() and step not in keep]
    except SlurmtrainError:
        return None
