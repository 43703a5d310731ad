"""The ladder on a real Slurm: ceilings of single causes, what retries may cost, nodes that are avoided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)


def explain(run: LiveRun) -> dict[str, object]:
    return dict(json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout))


def test_a_cause_climbs_its_own_ladder_until_retries_cost_too_much(cluster: Cluster, store: Path) -> None:
    """Crashes start with a requeue here. A node of this machine costs node hours; a fraction of one is allowed."""
    faults = ["--fail", "signal:SEGV", "--fail-launches", "-1", "--fail-at", "10", "--fail-rank", "0"]
    command = trainer(store, "--steps", "30", "--pace", "0.1", *faults)
    retry = {"delay_s": 0, "max_gpu_hours": 0.0003, "causes": {"native_crash": {"first": "requeue", "requeues": 5}}}
    run = submit(cluster, store, command, nodes=1, retry=retry)
    run.wait_state("Held", timeout_s=240)
    run.wait_slurm("FAILED")
    assert run.starts() == ["0.0", "1.0"], "the first failure is nobody's retry; the second cost too much"
    assert run.ended_states() == ["REQUEUED", "FAILED"]
    told = explain(run)
    budgets = told["budgets"]
    assert isinstance(budgets, dict)
    assert budgets["requeues:native_crash"] == {"used": 1, "allowed": 5}
    assert budgets["node_hours"]["used"] >= 0.0003
    assert "node hours" in str(told["last_decision"])


@pytest.mark.nodes(3)
def test_a_bad_node_is_avoided_beside_the_users_own(cluster: Cluster, store: Path) -> None:
    """Twice the same crash on one node: the next attempt is elsewhere, and not where the user does not want it."""
    bad, unwanted = cluster.nodes[0], cluster.nodes[1]
    faults = ["--fail", "signal:SEGV", "--fail-launches", "-1", "--fail-at", "10", "--fail-rank", "-1"]
    command = trainer(store, "--steps", "30", "--pace", "0.1", *faults, "--fail-node", bad)
    rest = cluster.nodes[2:]
    blocked = cluster.sbatch(
        "-w", ",".join(rest), f"-N{len(rest)}", "-t", "3", "--exclusive", script="#!/bin/bash\nsleep 600\n"
    )
    cluster.wait_state(blocked, "RUNNING")
    run = submit(cluster, store, command, nodes=1, retry={"delay_s": 0}, resources={"exclude": unwanted})
    run.wait_step(5)
    cluster.slurm("scancel", str(blocked))
    run.wait_state("Completed", timeout_s=240)
    run.wait_slurm("COMPLETED")
    run.ended_states()
    nodes = [row["NodeList"] for row in cluster.sacct(run.job_id, fields=("NodeList", "State"))]
    assert nodes[0] == bad
    assert nodes[1] in rest
    assert_whole(run.checkpoints, 30)
    (avoided,) = explain(run)["avoided_nodes"]  # type: ignore[misc]
    assert avoided["node"] == bad
    assert avoided["cause"] == "native_crash"
