"""Nodes that an administrator wants back, on a real Slurm: drained, and reserved for a maintenance."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)

NO_RETRIES = {"requeues": 0, "in_place": 0, "infrastructure": 0}
OFTEN = {"node_look_s": 5, "warning_s": 20}


def _nodes_of(run: LiveRun) -> list[list[str]]:
    rows = run.cluster.sacct(run.job_id, fields=("NodeList", "State"))
    return [run.cluster.expand(row["NodeList"]) for row in rows]


@pytest.mark.nodes(2)
@pytest.mark.docker_too
def test_a_draining_node_is_left_with_a_checkpoint(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "200", "--pace", "0.1", "--checkpoint-every", "100")
    run = submit(cluster, store, command, nodes=1, stop=OFTEN, retry=NO_RETRIES)
    run.wait_started()
    (bad,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={bad}", "State=DRAIN", "Reason=NHC: gpu 3 | ECC")
    run.wait_state("Completed", timeout_s=180)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    first, second = _nodes_of(run)
    assert (first, bad in second) == ([bad], False)
    assert "drain" in cluster.node_state(bad), "the node is free for the administrator"
    assert run.starts() == ["0.0", "1.0"]
    assert run.records("left"), "it saved because it was asked"
    assert run.records("start")[-1]["step"] > 0, "it went on from what it saved"
    assert_whole(run.checkpoints, 200)
    decision = run.decisions()[0]
    assert (decision["cause"], decision["budget"]) == ("drain", "none")
    told = " ".join(run.slurmtrain("explain", run.run_id).stdout.split())
    assert "NHC: gpu 3 | ECC" in told


def test_a_training_with_nothing_to_continue_from_stays(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "250", "--pace", "0.1", "--checkpoint-every", "1000", "--on-stop", "default")
    run = submit(cluster, store, command, nodes=1, stop=OFTEN, retry=NO_RETRIES)
    run.wait_started()
    (node,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=testing")
    wait_until(lambda: "without a checkpoint it would lose everything" in run.log(), 60, "it says so")
    run.wait_state("Completed", timeout_s=120)
    assert run.ended_states() == ["COMPLETED"]
    assert run.starts() == ["0.0"]


@pytest.mark.nodes(2)
def test_a_maintenance_is_left_before_it_begins(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "600", "--pace", "0.1", "--checkpoint-every", "1000")
    stop = {**OFTEN, "maintenance_lead_s": 30}
    run = submit(cluster, store, command, nodes=1, stop=stop, retry=NO_RETRIES)
    run.wait_started()
    (node,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    begins = time.time() + 50
    cluster.slurm(
        "scontrol", "create", "reservation", f"ReservationName=maint-{run.job_id}", "StartTime=now+50", "Duration=30",
        f"Nodes={node}", "Users=root", "Flags=MAINT,IGNORE_JOBS",
    )  # fmt: skip
    try:
        wait_until(lambda: "REQUEUED" in cluster.states_of(run.job_id), 90, "the job is requeued")
        left = time.time()
        assert left < begins + 1, f"{left - begins:.0f} s after the maintenance began"
        run.wait_state("Completed", timeout_s=180)
        first, second = _nodes_of(run)
        assert (first, node in second) == ([node], False)
        assert run.decisions()[0]["cause"] == "maintenance"
        assert_whole(run.checkpoints, 600)
    finally:
        cluster.slurm("scontrol", "delete", f"ReservationName=maint-{run.job_id}", check=False)
