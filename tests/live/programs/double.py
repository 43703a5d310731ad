#!/usr/bin/env python3
"""Trainings that restart or requeue themselves: with submitit, or below a torchrun that restarts.

Counts for ever; writes where it starts to ``starts.jsonl``; ends once a file ``finish`` is there, dies of one ``die``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

PACE_S = 0.2
RANK = int(os.environ.get("RANK", "0"))


def started(step: int) -> None:
    if RANK == 0:
        launch = f"{os.environ['SLURMTRAIN_ATTEMPT']}.{os.environ['SLURMTRAIN_LAUNCH']}"
        with open("starts.jsonl", "a") as stream:
            stream.write(json.dumps({"launch": launch, "step": step}) + "\n")


def make_step(step: int) -> int:
    time.sleep(PACE_S)
    if RANK == 0:
        print(f"step {step + 1}/1000 loss 0.5", flush=True)
    return step + 1


class Counting:
    """As users of submitit write it: called in the job, and asked for what to start after the requeue."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    def __call__(self) -> int:
        started(self.step)
        while not Path("finish").exists():
            self.step = make_step(self.step)
        return self.step

    def checkpoint(self) -> object:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(Counting(self.step))


def train_submitit() -> None:
    """What ``python -m submitit.core._submit`` does; what the login node would have written is written here."""
    from submitit.core.job_environment import JobEnvironment
    from submitit.core.submission import process_job
    from submitit.core.utils import DelayedSubmission

    os.environ.update(SUBMITIT_EXECUTOR="slurm", SUBMITIT_FOLDER=str(Path.cwd()))
    pickle = JobEnvironment().paths.submitted_pickle
    if not pickle.exists():
        first = DelayedSubmission(Counting())
        first.set_timeout(60, 3)
        first.dump(pickle)
    process_job(Path.cwd())


def train_elastic() -> None:
    """A rank below torchrun; rank 1 dies once, and torchrun starts both again."""
    import slurmtrain_training as st

    path = st.resume_from()
    step = int(json.loads(path.read_text())["step"]) if path else 0
    started(step)
    while not Path("finish").exists():
        step = make_step(step)
        if RANK == 1 and Path("die").exists():
            Path("die").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if st.should_stop():
            if RANK == 0:
                with st.atomic_save(st.checkpoint_dir() / f"step-{step}.json") as temporary:
                    temporary.write_text(json.dumps({"step": step}))
            return


if __name__ == "__main__":
    globals()[f"train_{sys.argv[1]}"]()
