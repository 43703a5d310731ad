"""The main job on a real Slurm: runs that fail, are cut off, or are taken away, and what becomes of them.

Asserted is what Slurm's accounting, squeue, the process table and the training's own checkpoints and records say.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import submit, trainer

pytestmark = pytest.mark.timeout(600)

FAST = {"delay_s": 1}
NO_RETRIES = {"requeues": 0, "in_place": 0}


@pytest.mark.docker_too
def test_a_training_that_ends_well_is_completed(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, trainer(store, "--steps", "12", "--pace", "0.05"), nodes=2, ranks=2)
    run.wait_state("Completed")
    run.wait_slurm("COMPLETED")
    run.ended_states()
    (row,) = cluster.sacct(run.job_id, fields=("State", "ExitCode", "DerivedExitCode"))
    assert row == {"State": "COMPLETED", "ExitCode": "0:0", "DerivedExitCode": "0:0"}, "the companions end well, too"
    assert_whole(run.checkpoints, 12)
    assert run.starts() == ["0.0"]


@pytest.mark.docker_too
def test_fail_restart_in_place_complete(cluster: Cluster, store: Path) -> None:
    """One job, one execution, two launches; the second goes on from the checkpoint."""
    command = trainer(
        store, "--steps", "40", "--fail", "signal:SEGV", "--fail-launches", "1", "--fail-at", "25", "--fail-rank", "3"
    )
    run = submit(cluster, store, command, nodes=2, ranks=2, retry=FAST)
    run.wait_state("Completed")
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"], "the allocation was never given back"
    assert run.starts() == ["0.0", "0.1"]
    assert run.records("start")[-1]["step"] >= 20, "not from the beginning"
    assert_whole(run.checkpoints, 40)
    steps = [row for row in cluster.sacct(run.job_id, steps=True) if "." in row["JobID"]]
    assert sum(row["JobID"].rpartition(".")[2].isdigit() for row in steps) == 4, (
        "two launches, the companions, and giving back between them"
    )
    row = run.status()
    assert (row["attempt"], row["launch"]) == (0, 1)


@pytest.mark.nodes(3)
def test_fail_requeue_to_another_node_within_seconds_complete(cluster: Cluster, store: Path) -> None:
    """A program that fails on one node and nowhere else: one run, two attempts, the second without that node."""
    bad = cluster.nodes[0]
    command = trainer(
        store, "--steps", "30", "--fail", "signal:SEGV", "--fail-launches", "-1", "--fail-at", "10", "--fail-rank",
        "-1", "--fail-node", bad,
    )  # fmt: skip
    run = submit(cluster, store, command, nodes=1, retry=FAST, resources={"sbatch_options": []})
    run.wait_state("Completed", timeout_s=150)
    run.wait_slurm("COMPLETED")
    states = run.ended_states()
    nodes = [row["NodeList"] for row in cluster.sacct(run.job_id, fields=("NodeList", "State"))]
    if nodes[0] != bad:
        pytest.skip(f"Slurm chose {nodes[0]} for the first attempt")
    assert states == ["REQUEUED", "COMPLETED"], states
    assert nodes[-1] != bad
    assert run.starts() == ["0.0", "0.1", "1.0"]
    assert_whole(run.checkpoints, 30)
    fault = [row["at"] for row in run.records("fault")][-1]
    again = [row["at"] for row in run.records("start")][-1]
    assert again - fault < 30, "Slurm's own requeue delay would be longer with its default timers"


@pytest.mark.default_timers
def test_with_slurms_own_timers_a_requeue_takes_seconds_all_the_same(cluster: Cluster, store: Path) -> None:
    """Slurm lets a requeued job wait 121 s, and would look for it only every 30 s; nobody watches here."""
    faults = ["--fail", "signal:SEGV", "--fail-launches", "1", "--fail-at", "10"]
    command = trainer(store, "--steps", "30", *faults)
    run = submit(cluster, store, command, nodes=2, retry={"in_place": 0, "delay_s": 0})
    run.wait_state("Completed", timeout_s=240)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    assert run.starts() == ["0.0", "1.0"]
    assert_whole(run.checkpoints, 30)
    fault = run.records("fault")[-1]["at"]
    again = run.records("start")[-1]["at"]
    print(f"from the crash to the first line of the next attempt: {again - fault:.1f} s")
    assert again - fault < 40


@pytest.mark.default_timers
def test_with_slurms_own_timers_the_deaf_are_ended_before_slurm_does(cluster: Cluster, store: Path) -> None:
    """KillWait is 30 s here: a program that ignores everything must be gone before, or the job is TIMEOUT."""
    command = trainer(store, "--steps", "600", "--pace", "0.1", "--checkpoint-every", "5", "--on-stop", "ignore")
    run = submit(cluster, store, command, nodes=1, time_limit="1", stop={"warning_s": 20}, retry=NO_RETRIES)
    run.wait_state("Completed", timeout_s=400)
    run.wait_slurm("COMPLETED")
    states = run.ended_states()
    assert set(states[:-1]) == {"REQUEUED"}, states
    assert_whole(run.checkpoints, 600)


@pytest.mark.docker_too
def test_a_permanent_error_is_launched_once_and_frees_the_nodes(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "40", "--fail", "import_error", "--fail-launches", "-1", "--fail-at", "3")
    run = submit(cluster, store, command, retry=FAST)
    row = run.wait_state("Failed")
    run.wait_slurm("FAILED")
    assert row["cause"] == "import_error"
    assert run.starts() == ["0.0"]
    run.ended_states()
    (row,) = cluster.sacct(run.job_id, fields=("State", "ExitCode"))
    assert row == {"State": "FAILED", "ExitCode": "1:0"}, "the code of the rank that failed, not of those srun killed"
    wait_until(lambda: not cluster.processes(run.job_id), 20, "no process of the job is left")


@pytest.mark.parametrize("partition", ["batch", "graced"])
@pytest.mark.parametrize("on_stop", [pytest.param("save", marks=pytest.mark.docker_too), "default"])
def test_preemption_is_continued_without_a_budget(cluster: Cluster, store: Path, partition: str, on_stop: str) -> None:
    """With grace a training may save and exit 0 while squeue says RUNNING: that is not the end of the run.

    Since 24.05 Slurm may forget to clear its mark of the grace, and starts the finished job once more.
    """
    command = trainer(store, "--steps", "120", "--pace", "0.1", "--checkpoint-every", "5", "--on-stop", on_stop)
    nodes = cluster.nodes[:2]
    placed = {"nodelist": ",".join(nodes)}
    run = submit(cluster, store, command, partition=partition, resources=placed, retry=NO_RETRIES)
    run.wait_step(10)
    where = ["-p", cluster.partition("urgent"), "-w", nodes[0], "-N1", "--exclusive", "-t", "1"]
    urgent = cluster.sbatch(*where, script="#!/bin/bash\nsleep 3\n")
    cluster.wait_state(urgent, "RUNNING", "COMPLETED", timeout_s=90)
    run.wait_state("Completed", timeout_s=240)
    run.wait_slurm("COMPLETED")
    assert_whole(run.checkpoints, 120)
    states = run.ended_states()
    assert states[-1] == "COMPLETED"
    assert set(states[:-1]) <= {"PREEMPTED", "REQUEUED"}
    assert len(states) == 2 or (cluster.docker and partition == "graced" and len(states) == 3), states
    assert run.starts() == ["0.0", "1.0"], "the third execution, if any, trains nothing"
    assert [d["budget"] for d in run.decisions()] == ["none", "none"]
    assert run.decisions()[0]["cause"] == "preempted"
    if on_stop == "save":
        assert run.records("left"), "the training was asked to save"


_SHAPES = ("plain", "bash", "deaf", "torchrun")


def _shaped(shape: str, command: list[str]) -> list[str]:
    if shape == "bash":
        return ["bash", "-c", f"{' '.join(command)}; code=$?; echo wrapper ends; exit $code"]
    if shape == "deaf":
        return [*command, "--on-stop", "ignore"]
    return command


@pytest.mark.parametrize("shape", _SHAPES)
def test_the_time_limit_is_continued(cluster: Cluster, store: Path, shape: str, request: pytest.FixtureRequest) -> None:
    launcher = "srun"
    environment: dict[str, list[str]] = {}
    if shape == "torchrun":
        launcher = "torchrun"
        torch: Path = request.getfixturevalue("torch_python")
        environment = {"setup": [f"export PATH={torch.parent}:$PATH"]}
    command = _shaped(shape, trainer(store, "--steps", "500", "--pace", "0.1", "--checkpoint-every", "5"))
    if shape == "torchrun":
        command = command[1:]  # torchrun brings the interpreter
    run = submit(
        cluster,
        store,
        command,
        launcher=launcher,
        time_limit="1",
        stop={"warning_s": 20},
        retry=NO_RETRIES,
        environment=environment,
        resources={"memory": "2G"},
    )
    run.wait_state("Completed", timeout_s=400)
    run.wait_slurm("COMPLETED")
    states = run.ended_states()
    assert states[-1] == "COMPLETED"
    assert set(states[:-1]) == {"REQUEUED"}, f"left before Slurm cut it off: {states}"
    assert_whole(run.checkpoints, 500)
    assert all(d["budget"] == "none" for d in run.decisions())
    left = run.records("left")
    if shape == "deaf":
        assert not left
    else:
        assert {row["rank"] for row in left} == {0, 1}, "each rank heard the warning"
        signals = [(r["launch"], r["rank"]) for r in run.records("signal") if r["signal"] == "SIGUSR2"]
        assert len(signals) == len(set(signals)), "each rank of a launch heard it once"


@pytest.mark.nodes(3)
@pytest.mark.native_only
def test_a_node_killed_in_mid_run_and_the_run_finished_elsewhere(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "150", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, nodes=2)
    run.wait_step(10)
    nodes = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    victim = nodes[-1]
    cluster.kill_node(victim)
    wait_until(lambda: "NODE_FAIL" in cluster.states_of(run.job_id), 120, "Slurm declares the node lost")
    run.watch_once()
    run.wait_state("Completed", timeout_s=180)
    run.wait_slurm("COMPLETED")
    run.ended_states()
    rows = cluster.sacct(run.job_id, fields=("State", "NodeList"))
    assert [row["State"] for row in rows][-1] == "COMPLETED"
    assert victim not in cluster.expand(rows[-1]["NodeList"])
    assert_whole(run.checkpoints, 150)
    assert run.decisions()[0]["cause"] == "node_fail"
    assert run.decisions()[0]["budget"] == "infrastructure"


@pytest.mark.docker_too
def test_a_cancelled_run_stays_cancelled(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "400", "--pace", "0.1")
    run = submit(cluster, store, command)
    run.wait_step(10)
    cluster.as_user("scancel", str(run.job_id))
    run.wait_slurm("CANCELLED")
    assert run.status()["state"] == "Stopped", "also before a watcher has written it down"
    run.watch_once()
    row = run.wait_state("Stopped")
    assert row["cause"] == "user_cancelled"
    assert "time_limit" not in run.log()
    time.sleep(8)
    run.watch_once()
    assert cluster.job(run.job_id).state == "CANCELLED"  # type: ignore[union-attr]
    cluster.wait_accounting(run.job_id, ["CANCELLED"])


def test_a_purged_job_is_still_resolved(cluster: Cluster, store: Path) -> None:
    """Nobody watched while the script was killed and slurmctld forgot the job: the run goes on as a new job."""
    command = trainer(store, "--steps", "60", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, nodes=1)
    run.wait_step(10)
    shells = [p for p in cluster.processes(run.job_id) if not p.in_step]
    script = [p for p in shells if any("slurm_script" in word for word in p.argv)]
    agents = [p for p in shells if "attempt" in p.argv]
    assert script, [p.argv for p in shells]
    assert agents, [p.argv for p in shells]
    for process in (*script, *agents, *run.rank_processes()):
        cluster.signal_process(process, signal.SIGKILL)
    wait_until(lambda: cluster.job(run.job_id) is None, 120, "slurmctld has forgotten the job")
    ends = {"FAILED", "CANCELLED", "NODE_FAIL"}
    wait_until(lambda: set(cluster.states_of(run.job_id)[:1]) & ends, 60, f"{ends} in accounting")
    wait_until(lambda: run.watch_once() or run.status()["job_id"] != str(run.job_id), 60, "a new job of the run", 2)
    row = run.wait_state("Completed", timeout_s=150)
    assert row["run_id"] == run.run_id
    assert_whole(run.checkpoints, 60)


def test_without_the_agent_the_training_runs_all_the_same(cluster: Cluster, store: Path) -> None:
    """The batch script runs it once and records the end; the watcher decides, and the job goes on."""
    faults = ["--fail", "signal:SEGV", "--fail-launches", "1", "--fail-at", "20"]
    command = trainer(store, "--steps", "30", "--pace", "0.05", *faults)
    run = submit(cluster, store, command, nodes=1, resources={"sbatch_options": ["--begin=now+4"]})
    agent = (run.path / "agent.pyz").read_bytes()
    (run.path / "agent.pyz").write_bytes(b"not a zip file")
    run.wait_slurm("FAILED")
    assert len(run.starts()) == 1, "the training ran, and ran once"
    assert not run.decisions(), "nobody in the job decided"
    (run.path / "agent.pyz").write_bytes(agent)
    run.watch_once()
    run.wait_state("Completed", timeout_s=180)
    run.wait_slurm("COMPLETED")
    assert_whole(run.checkpoints, 30)
    states = run.ended_states()
    assert len(states) == 2
    assert states[-1] == "COMPLETED"
