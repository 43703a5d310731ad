"""An agent that was killed is started again by the batch script: what it left running is ended before anything else."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.leftovers import end_leftovers
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import is_ours, look_patiently
from slurmtrain.core.run import Run, find_attempt
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import AttemptDir


def clear_the_way(job: JobContext, slurm: SlurmClient, env: Mapping[str, str]) -> bool:
    """End the launch of the agent before; False where the job must be left as it is."""
    say("the agent had died; a new one takes over")
    seen = look_patiently(slurm, job.job_id)
    if seen is None or not is_ours(seen, job.restart_count):
        state = "does not answer" if seen is None else f"says {seen.state}, restart {seen.restart_count}"
        say(f"Slurm {state}: nothing is started here any more")
        return False
    if not end_leftovers(job.job_id, env.get("SLURM_JOB_ID", ""), slurm):
        say("what the agent before had started cannot be ended: nothing is started beside it")
        return False
    return True


def number_of_next_launch(run: Run, attempt: AttemptDir) -> int:
    """Behind every launch that was begun, also one that nobody wrote down any more."""
    known = find_attempt(run, attempt.number)
    numbers = [launch.number for launch in known.launches] if known else []
    with contextlib.suppress(OSError):
        names = [path.name for path in (attempt.path / "launches").iterdir()]
        numbers += [int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 9]
    return max(numbers, default=-1) + 1


def is_restart_decided(run: Run, attempt: AttemptDir, number: int) -> bool:
    """Whether it was decided that this launch is followed by another one in the same allocation."""
    known = find_attempt(run, attempt.number)
    launches = known.launches if known else ()
    return any(launch.number == number and launch.decision is not None for launch in launches)
