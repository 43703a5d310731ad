"""Heterogeneous jobs on a real Slurm: one world over components of different shape, lost and recovered as one.

Asserted is what Slurm's accounting says of each component, and the trainings' own records and checkpoints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)

LONG = ["--steps", "3000", "--pace", "0.1", "--checkpoint-every", "10"]
COMPONENTS = [{"nodes": 1, "tasks_per_node": 1}]
ONCE = {"delay_s": 1, "in_place": 1}
LAST = 2  # the rank of the second component: the first has two


def submit_het(cluster: Cluster, store: Path, command: list[str], **spec: Any) -> LiveRun:
    """Two ranks on one node, one on another."""
    return submit(cluster, store, command, nodes=1, ranks=2, components=COMPONENTS, **{"retry": {"delay_s": 1}, **spec})


def ends(run: LiveRun) -> dict[str, list[str]]:
    """Component → how its executions ended, once accounting has the last end."""

    def ended() -> dict[str, list[str]] | None:
        found: dict[str, list[str]] = {}
        for row in run.cluster.sacct(run.job_id, fields=("JobID", "State")):
            found.setdefault(row["JobID"].partition("+")[2], []).append(row["State"].split()[0])
        over = all(states[-1] not in {"PENDING", "RUNNING", "REQUEUED"} for states in found.values())
        return found if found and over else None

    return wait_until(ended, 30, f"accounting has the end of job {run.job_id}") or {}


def node_of(run: LiveRun, rank: int) -> str:
    return str([row["node"] for row in run.records("start") if row["rank"] == rank][-1])


@pytest.mark.docker_too
def test_a_rank_of_the_second_component_fails(cluster: Cluster, store: Path) -> None:
    """In place first, then through a requeue of all components; blamed are the rank of the world and its node."""
    faults = ["--fail", "signal:SEGV", "--fail-launches", "2", "--fail-at", "20", "--fail-rank", str(LAST)]
    run = submit_het(cluster, store, trainer(store, "--steps", "40", "--checkpoint-every", "30", *faults), retry=ONCE)
    run.wait_state("Completed", timeout_s=200)
    run.wait_slurm("COMPLETED")
    assert ends(run) == {"0": ["REQUEUED", "COMPLETED"], "1": ["REQUEUED", "COMPLETED"]}
    assert run.starts(LAST) == ["0.0", "0.1", "1.0"]
    assert {row["world"] for row in run.records("start")} == {3}
    assert node_of(run, LAST) != node_of(run, 0)
    assert_whole(run.checkpoints, 40)
    failed = next(row for row in run.records("start") if row["rank"] == LAST)
    told = " ".join(run.slurmtrain("explain", run.run_id).stdout.split())
    assert f"first failing: rank {LAST} on node {failed['node']}" in told
    wait_until(lambda: not cluster.processes(run.job_id), 20, "no process of the job is left")


def test_stopping_reaches_all_components_and_a_cancelled_job_stays_cancelled(cluster: Cluster, store: Path) -> None:
    deaf = trainer(store, *LONG, "--on-stop", "note")
    run = submit_het(cluster, store, deaf, name="stopped", stop={"warning_s": 5, "grace_s": 2})
    run.wait_step(10)
    wait_until(lambda: len(run.records("start")) == 3, 30, "all ranks train")
    assert set(run.status()["nodes"]) == {node_of(run, 0), node_of(run, LAST)}
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")
    signals = {(row["rank"], row["signal"]) for row in run.records("signal")}
    assert {(rank, name) for rank in range(3) for name in ("SIGUSR2", "SIGTERM")} <= signals, signals
    wait_until(lambda: not cluster.processes(run.job_id), 20, "no process of the job is left")

    run = submit_het(cluster, store, trainer(store, *LONG), name="cancelled")
    run.wait_step(10)
    assert cluster.as_user("scancel", str(run.job_id)).returncode == 0
    run.wait_slurm("CANCELLED")
    run.watch_once()
    run.wait_state("Stopped")
    run.watch_once()
    assert ends(run) == {"0": ["CANCELLED"], "1": ["CANCELLED"]}
    assert run.starts(LAST) == ["0.0"]


def test_the_second_component_is_preempted_then_loses_its_node(cluster: Cluster, store: Path) -> None:
    """Slurm takes all components back into the queue, and each attempt goes on from the last checkpoint."""
    run = submit_het(cluster, store, trainer(store, *LONG), resources={"exclusive": True})
    run.wait_step(10)
    wait_until(lambda: len(run.records("start")) == 3, 30, "all ranks train")
    urgent = cluster.sbatch(
        "-p", cluster.partition("urgent"), "-w", node_of(run, LAST), "--exclusive", "-o", "/dev/null",
        script="#!/bin/bash\nsleep 3\n",
    )  # fmt: skip
    wait_until(lambda: len(run.starts(LAST)) == 2, 150, "the preempted job trains again")
    cluster.wait_gone(urgent)
    step = run.newest_step()
    run.wait_step(step + 10)
    lost = node_of(run, LAST)
    cluster.kill_node(lost)
    wait_until(lambda: len(run.starts(LAST)) == 3, 200, "it trains again without the lost node")
    assert node_of(run, LAST) != lost
    expected = ["NODE_FAIL", "NODE_FAIL", "PREEMPTED", "PREEMPTED", "RUNNING", "RUNNING"]
    wait_until(lambda: sorted(cluster.states_of(run.job_id)) == expected, 30, "accounting has all three executions")
    begun = [row["step"] for row in run.records("start") if row["rank"] == LAST]
    assert begun[0] == 0
    assert begun[1] >= 10
    assert begun[2] >= step


@pytest.mark.needs_cgroup
def test_deaf_ranks_of_all_components_are_ended_before_the_time_limit(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "600", "--pace", "0.1", "--checkpoint-every", "5", "--on-stop", "ignore")
    run = submit_het(cluster, store, command, time_limit="1", stop={"warning_s": 20})
    run.wait_state("Completed", timeout_s=300)
    run.wait_slurm("COMPLETED")
    found = ends(run)
    assert found["0"] == found["1"]
    assert set(found["0"][:-1]) == {"REQUEUED"}, "it left in time, also where nobody listened"
    assert found["0"][-1] == "COMPLETED"
    assert_whole(run.checkpoints, 600)
