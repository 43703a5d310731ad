"""Runs that ended long ago, with the files that agents and companions leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from made_runs import MadeRun, Slurm, make_run

from slurmtrain.core.decision import Action, RunState


def ended(
    store: Path, run_id: str = "train-1", *, jobs: int = 1, launches: int = 2, held: bool = False, **spec: Any
) -> MadeRun:
    """A run that ended long ago (or is ``held`` since then), with the files that agents and companions leave."""
    end = (Action.HOLD, RunState.HELD) if held else (Action.STOP, RunState.FAILED)
    slurm, run = Slurm(), make_run(store, run_id, **spec)
    for job in range(jobs):
        job_id = run.submitted(slurm, job)
        log = run.dir.log_file(str(job_id))
        attempt = run.attempt(job_id)
        folder = run.dir.attempt(attempt)
        (folder.nodes / "n1.json").write_text("{}")
        (folder.path / "companion.log").write_text("words\n")
        for launch in range(launches):
            offset = log.stat().st_size if log.exists() else 0
            run.launch(attempt, launch, log=f"logs/{log.name}", offset=offset)
            folder.launch(launch).mkdir(parents=True)
            for rank in range(4):
                (folder.launch(launch) / f"error-rank-{rank}.json").write_text("{}")
            with log.open("a") as stream:
                stream.write(f"0: job {job} launch {launch}\n")
            run.launch_ended(attempt, launch, log_end=log.stat().st_size)
            with log.open("a") as stream:
                stream.write("slurmtrain: decided\n")
        last = job == jobs - 1
        run.diagnosed(attempt, launches - 1, cause="oom", sentence="memory")
        state = end if last else (Action.REQUEUE, RunState.PENDING)
        run.decided(attempt, *state)
    return run
