"""The ladder on a real Slurm: ceilings of single causes, what retries may cost, nodes that are avoided."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)


def explain(run: LiveRun) -> dict[str, object]:
    return dict(json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout))


def test_retries_end_when_they_have_cost_enough(cluster: Cluster, store: Path) -> None:
    """Without GPUs a job counts nodes; here a second of one is allowed. The first failure is nobody's retry."""
    faults = ["--fail", "signal:SEGV", "--fail-launches", "-1", "--fail-at", "10", "--fail-rank", "0"]
    command = trainer(store, "--steps", "30", "--pace", "0.1", *faults)
    retry = {"delay_s": 0, "max_gpu_hours": 0.0001, "causes": {"native_crash": {"requeues": 5}}}
    run = submit(cluster, store, command, nodes=1, retry=retry)
    run.wait_state("Held", timeout_s=240)
    run.wait_slurm("FAILED")
    assert run.starts() == ["0.0", "0.1"]
    assert run.ended_states() == ["FAILED"], "a requeue was the next rung, and it costs more than is left"
    told = explain(run)
    budgets = told["budgets"]
    assert isinstance(budgets, dict)
    assert budgets["requeues:native_crash"] == {"used": 0, "allowed": 5}
    assert budgets["node_hours"]["used"] >= 0.0001
    assert "node hours" in str(told["last_decision"])


def test_five_runs_that_fail_alike_wait_for_one_of_them(cluster: Cluster, store: Path) -> None:
    """The fifth within minutes is not tried at once; `release` starts it all the same."""
    go, fixed = store / "go", store / "fixed"
    wait = f"until test -e {go}; do sleep 0.2; done"
    fail = "{ echo 'RuntimeError: CUDA error: GPU is lost' >&2; exit 1; }"
    script = f"{wait}; test -e {fixed} || {fail}; sleep 1"
    command = ["bash", "-c", script]
    retry = {"delay_s": 0, "exclude_nodes": False, "infrastructure": 50, "breaker_s": 300}
    causes = {"gpu_lost": {"requeues": 50, "in_place": 0, "first": "requeue"}}
    runs = [submit(cluster, store, command, nodes=1, name=f"r{n}", retry={**retry, "causes": causes}) for n in range(5)]

    for run in runs:
        run.wait_state("Running", timeout_s=120)
    go.write_text("all at once")

    def waiting() -> list[LiveRun]:
        return [r for r in runs if any(d.get("waits_for") for d in r.decisions())]

    wait_until(lambda: bool(waiting()), 120, "one of them waits")
    fixed.write_text("yes")
    waits = waiting()[0]
    probe = next(d["waits_for"] for d in waits.decisions() if d.get("waits_for"))
    assert probe in {r.run_id for r in runs} - {waits.run_id}
    job = wait_until(
        lambda: (row := cluster.job(waits.job_id)) is not None and row.state == "PENDING" and row, 60, "it waits"
    )
    assert "BeginTime" in job.reason
    status = waits.status()
    assert probe in status["reason"]
    assert "tries first" in status["reason"]
    assert "tries first" in " ".join(waits.slurmtrain("explain", waits.run_id).stdout.split())
    assert "start" in waits.slurmtrain("release", "--dry-run", waits.run_id).stdout
    for run in waiting():
        run.slurmtrain("release", run.run_id, check=False)
    for run in runs:
        run.wait_state("Completed", timeout_s=200)


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
