"""Trainings that write down where they start, in ``starts.jsonl``, and end once a file ``finish`` is there."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from cluster import Cluster, wait_until
from programs.place import place_programs
from runs import LiveRun

from slurmtrain import training


def place(store: Path, name: str) -> str:
    """The path of a program that has the helper for training code beside it."""
    programs = place_programs(store)
    helper = Path(shutil.copy(training.__file__, programs / "slurmtrain_training.py"))
    os.chown(helper, store.stat().st_uid, store.stat().st_gid)
    return str(programs / name)


def starts(run: LiveRun) -> list[dict[str, Any]]:
    """``launch`` and ``step`` of each start."""
    path = run.workdir / "starts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_starts(run: LiveRun, number: int) -> None:
    """Until so many trainings have begun, and the newest has come some steps further."""
    wait_until(lambda: len(starts(run)) >= number or run.ended, 300, f"start {number} of {run.run_id}")
    assert len(starts(run)) >= number, run.log()[-4000:]
    told = run.log().count("loss")
    wait_until(lambda: run.log().count("loss") >= told + 3, 60, "steps are made")


def drain(cluster: Cluster, run: LiveRun) -> None:
    """An administrator drains the node of the run."""
    (bad,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=test")


def finish(run: LiveRun) -> None:
    """Let it end."""
    (run.workdir / "finish").touch()
    run.wait_state("Completed", "Failed", "Held", "Stopped", timeout_s=240)
