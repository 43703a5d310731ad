"""Between two launches: every node gives back what the dead launch held, before the next one starts.

On one node the agent does it itself. On several a short step does, one task on each (``agent.pyz release``): it needs
no companion and no file on shared storage, and its output is the answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from slurmtrain.agent.job import JobContext, count_nodes
from slurmtrain.agent.release import release_node
from slurmtrain.agent.say import say
from slurmtrain.slurm.commands import build_companion_srun
from slurmtrain.slurm.environment import beside_environment

WAIT_S = 30.0  # for a node to give everything back
_STEP_S = 30.0  # beyond that, for srun to start and to end
HELD = 3  # exit code of a node that still holds something


def release_all(job: JobContext, env: Mapping[str, str], since: float) -> bool:
    """False where a node still holds something after the wait, which is said; True also where nobody can tell."""
    nodes = count_nodes(env)
    if sum(nodes) == 1:
        if held := _release(env, since):
            say(f"still held on {job.host}: {', '.join(held)}")
        return not held
    command = [sys.executable, "-I", str(job.run.agent), "release", str(int(since))]
    try:
        done = subprocess.run(
            build_companion_srun(nodes, command, name="release"),
            env=beside_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WAIT_S + _STEP_S,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        say(f"nobody can tell whether the launch before has given everything back: {exc}")
        return True
    told = [line for line in done.stdout.splitlines() if line.startswith("still held on ")]
    for line in told[:8]:
        say(line[:300])
    return not told


def release_here(since: float) -> int:
    """The task of the step; in a heterogeneous job each component has a job id of its own."""
    if held := _release(os.environ, since):
        sys.stdout.write(f"still held on {os.environ.get('SLURMD_NODENAME', '?')}: {', '.join(held)}\n")
    return HELD if held else 0


def _release(env: Mapping[str, str], since: float) -> list[str]:
    return release_node(env.get("SLURM_JOB_ID", ""), since, WAIT_S, gpus=env.get("CUDA_VISIBLE_DEVICES"))
