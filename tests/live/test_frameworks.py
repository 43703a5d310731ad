"""Acceptance: Lightning, the Hugging Face Trainer and accelerate, with the default settings of both sides.

An administrator drains the node in mid-training: the framework saves, the job is requeued once, by one of the two, and
the training goes on elsewhere from what was saved.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import place_programs
from runs import LiveRun, submit

from slurmtrain import training

pytestmark = [
    pytest.mark.skipif(
        "SLURMTRAIN_LONG_TESTS" not in os.environ, reason="some minutes long; set SLURMTRAIN_LONG_TESTS"
    ),
    pytest.mark.whole_cluster,
    pytest.mark.timeout(1200),
    pytest.mark.native_only,
]
PATTERNS = {"lightning": "step-*.ckpt", "trainer": "checkpoint-*", "accelerate": "step-*"}


def starts(run: LiveRun) -> list[dict[str, object]]:
    path = run.workdir / "starts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("framework", PATTERNS)
def test_one_requeue_per_ending(cluster: Cluster, store: Path, framework_python: Path, framework: str) -> None:
    programs = place_programs(store)
    helper = Path(shutil.copy(training.__file__, programs / "slurmtrain_training.py"))
    os.chown(helper, store.stat().st_uid, store.stat().st_gid)
    command = [str(framework_python), str(programs / "frameworks.py"), framework]
    run = submit(
        cluster, store, command, nodes=1, checkpoint={"pattern": PATTERNS[framework]}, retry={"requeues": 0},
        stop={"node_look_s": 5, "warning_s": 60}, resources={"memory": "3G"},
    )  # fmt: skip
    wait_until(lambda: starts(run) or "decision:" in run.log(), 400, f"{framework} trains")
    assert starts(run), run.log()[-4000:]
    (bad,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=test")
    run.wait_state("Completed", "Failed", "Held", "Stopped", timeout_s=600)
    log = run.log()
    assert run.ended_states() == ["REQUEUED", "COMPLETED"], log[-4000:]
    first, second = starts(run)
    assert (first["launch"], second["launch"]) == ("0.0", "1.0")
    assert 0 < int(str(second["step"])) < 60, "it went on from what it saved when it was asked"
    assert next((d["action"], d["cause"]) for d in run.decisions()) == ("requeue", "drain")
    assert "before the end" in log, "it is told that the work was saved"
    if framework == "lightning":
        assert "cluster environment: SLURMEnvironment" in log, "its own support for Slurm is on"
