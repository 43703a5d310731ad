"""A training whose store cannot be written: it runs all the same, and nobody here decides anything about it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping
from types import FrameType

from slurmtrain.agent.companions import ask_through_slurm
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.checkpoints.cut_saves import finish_cut_saves
from slurmtrain.checkpoints.find import checkpoint_dir, choose
from slurmtrain.ops.fallback import write_fallback
from slurmtrain.slurm.client import SlurmClient


def train_without_record(job: JobContext, slurm: SlurmClient, env: Mapping[str, str], why: str) -> int:
    """The batch script's exit code. Slurm's warning is handed on."""
    say(f"{why}; the training runs, and nothing is decided here")
    warned: list[int] = []

    def on_warning(number: int, _frame: FrameType | None) -> None:
        warned.append(number)
        ask_through_slurm(job, slurm, env)

    signal.signal(signal.SIGTERM, lambda number, _frame: warned.append(number))  # children would inherit it ignored
    signal.signal(signal.SIGUSR2, on_warning)
    wanted = job.plan.spec.checkpoint
    finish_cut_saves(checkpoint_dir(job.run.path, wanted), wanted.pattern)
    newest = choose(job.run.path, wanted).newest
    known = {"SLURMTRAIN_LAUNCH_KEY": "none.0", "SLURMTRAIN_RESUME_FROM": str(newest.path) if newest else ""}
    try:
        code = subprocess.call(["/bin/bash", str(job.run.launch_script)], env={**env, **known})
    except OSError as exc:
        say(f"cannot start the training: {exc}")
        return 1
    write_fallback(job.run, str(job.job_id), job.restart_count, code, stop_sent=bool(warned))
    # Whoever sees the end of the job before that file would take 0 for success: it left because it was asked to.
    return code or (1 if warned else 0)
