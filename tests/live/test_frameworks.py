"""Acceptance: Lightning, the Hugging Face Trainer, accelerate and JAX, with the default settings of both sides.

One training of each lives through all endings: its node drains, a job of higher priority takes the node, its process
dies, its time limit comes. It saves when it is asked, Slurm has one requeue for each ending that needs one, and the run
goes on from what was saved.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from own_starts import drain, finish, place, starts, wait_starts
from runs import LiveRun, submit

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.native_only,
    pytest.mark.nodes(3),
]
PATTERNS = {"lightning": "step-*.ckpt", "trainer": "checkpoint-*", "accelerate": "step-*", "jax": "step-*.npz"}


def preempt(cluster: Cluster, run: LiveRun) -> None:
    (node,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    where = ["-p", cluster.partition("urgent"), "-w", node, "-N1", "--exclusive", "-t", "1"]
    cluster.sbatch(*where, script="#!/bin/bash\nsleep 1\n")


def bring_the_time_limit(cluster: Cluster, run: LiveRun) -> None:
    """An administrator shortens it, so that the warning is due at once; the next execution has its time again."""

    def set_limit(minutes: int) -> bool:
        done = cluster.as_root("scontrol", "update", f"JobId={run.job_id}", f"TimeLimit={minutes}")
        return done.returncode == 0

    ran = cluster.show_job(run.job_id)["RunTime"].split(":")
    assert set_limit(int(ran[-3][-2:]) * 60 + int(ran[-2]) + 2)
    before = len(run.decisions())
    wait_until(lambda: len(run.decisions()) > before, 120, "the warning before the time limit is heard")
    cluster.wait_state(run.job_id, "PENDING", "RUNNING", timeout_s=60)
    wait_until(lambda: set_limit(30), 30, "the limit is what it was")


@pytest.mark.parametrize("framework", PATTERNS)
def test_one_requeue_for_each_ending(cluster: Cluster, store: Path, framework_python: Path, framework: str) -> None:
    command = [str(framework_python), place(store, "frameworks.py"), framework]
    run = submit(
        cluster, store, command, nodes=1, ranks=2 if framework in {"jax", "lightning"} else 1, partition="graced",
        time_limit="30", retry={"requeues": 0}, checkpoint={"pattern": PATTERNS[framework]},
        stop={"node_look_s": 3, "warning_s": 150, "grace_s": 60},
        resources={"memory": "3G"},
    )  # fmt: skip
    wait_starts(run, 1)
    drain(cluster, run)
    wait_starts(run, 2)
    preempt(cluster, run)
    wait_starts(run, 3)
    (run.workdir / "die").touch()
    wait_starts(run, 4)
    bring_the_time_limit(cluster, run)
    wait_starts(run, 5)
    finish(run)
    log, states = run.log(), run.ended_states()
    assert [state.replace("PREEMPTED", "REQUEUED") for state in states] == [*["REQUEUED"] * 3, "COMPLETED"], log[-4000:]
    assert [row["launch"] for row in starts(run)] == ["0.0", "1.0", "2.0", "2.1", "3.0"]
    steps = [row["step"] for row in starts(run)]
    assert steps[0] == 0 < steps[1] < steps[2] == steps[3] < steps[4], "from what it saved when it was asked"
    told = [(d["action"], d["cause"], d["budget"]) for d in run.decisions()]
    asked = [("requeue", cause, "none") for cause in ("drain", "preempted", "time_limit")]
    assert told == [*asked, ("complete", "no_failure", "none")]
    assert log.count("before the end") >= 3, "it is told that the work was saved"
    if framework == "lightning":
        assert "cluster environment: SLURMEnvironment" in log, "its own support for Slurm is on"
