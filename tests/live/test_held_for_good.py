"""A job that Slurm requeued as often as it does: JobHoldMaxRequeue. The real state takes five lost batch hosts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import submit, trainer

pytestmark = pytest.mark.timeout(900)


@pytest.mark.native_only
@pytest.mark.skipif("SLURMTRAIN_LONG_TESTS" not in os.environ, reason="some minutes long; set SLURMTRAIN_LONG_TESTS")
def test_a_job_that_slurm_holds_for_good_goes_on_as_a_new_job(cluster: Cluster, store: Path) -> None:
    """Without its agent, which would have asked for a person long before Slurm gives up."""
    command = trainer(store, "--steps", "3000", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, nodes=1, resources={"sbatch_options": ["--begin=now+3"]})
    agent = (run.path / "agent.pyz").read_bytes()
    (run.path / "agent.pyz").write_bytes(b"not a zip file")
    for lost in range(1, 7):
        row = cluster.wait_state(run.job_id, "RUNNING", "REQUEUE_HOLD", timeout_s=120)
        if row.state == "REQUEUE_HOLD":
            break
        cluster.kill_node(row.nodes[0])
        cluster.start_slurmd(row.nodes[0])
        wait_until(lambda n=lost: cluster.job(run.job_id).restarts >= n, 180, "Slurm requeues it")  # type: ignore[misc,union-attr]
    held = cluster.wait_state(run.job_id, "REQUEUE_HOLD", timeout_s=60)
    assert "JobHoldMaxRequeue" in held.reason
    refused = cluster.as_user("scontrol", "release", str(run.job_id))
    assert refused.returncode != 0, "its owner may not release it"
    (run.path / "agent.pyz").write_bytes(agent)
    run.watch_once()
    new = int(run.status()["job_id"])
    assert new != run.job_id
    cluster.wait_state(run.job_id, "CANCELLED")
    cluster.wait_state(new, "RUNNING", timeout_s=60)
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")
    assert_whole(run.checkpoints, run.newest_step())
