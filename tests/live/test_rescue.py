"""``rescue: true`` on a real Slurm: nobody watches, and the run goes on; nothing is revived that a person ended."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)


def _rescue_jobs(run: LiveRun) -> dict[str, str]:
    """Job id → state of the run's rescue jobs, as slurmctld has them."""
    lines = run.cluster.slurm("squeue", "-h", "-t", "all", "-u", run.cluster.user, "-o", "%i %T %j").splitlines()
    rows = [line.split() for line in lines if line.endswith(f" {run.workdir.name.removeprefix('work-')}-rescue")]
    return {row[0]: row[1] for row in rows}


@pytest.mark.docker_too
def test_a_killed_script_is_recovered_though_nobody_watches(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "60", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, name="saved", nodes=1, rescue=True)
    (first,) = _rescue_jobs(run)
    run.wait_step(10)
    shells = [p for p in cluster.processes(run.job_id) if not p.in_step]
    script = [p for p in shells if any("slurm_script" in word for word in p.argv)]
    agents = [p for p in shells if "attempt" in p.argv]
    assert script
    assert agents
    for process in (*script, *agents, *run.rank_processes()):
        cluster.signal_process(process, signal.SIGKILL)
    run.wait_state("Completed", timeout_s=180)
    run.wait_slurm("COMPLETED")
    assert_whole(run.checkpoints, 60)
    assert run.starts() == ["0.0", "1.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["watcher", "agent"], (
        "the rescue job decides as a watcher does"
    )
    cluster.wait_accounting(first, ["COMPLETED"])
    wait_until(
        lambda: set(_rescue_jobs(run).values()) <= {"COMPLETED", "CANCELLED"}, 60, "no rescue job waits any more"
    )


def test_a_cancelled_run_is_not_rescued(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "400", "--pace", "0.1")
    run = submit(cluster, store, command, name="ended", nodes=1, rescue=True)
    (rescue,) = _rescue_jobs(run)
    run.wait_step(5)
    cluster.as_user("scancel", str(run.job_id))
    run.wait_slurm("CANCELLED")
    cluster.wait_state(int(rescue), "COMPLETED", timeout_s=60)
    assert run.status()["state"] == "Stopped"
    assert any(d["state"] == "Stopped" for d in run.decisions()), "the rescue job wrote it down"
    time.sleep(8)
    cluster.wait_accounting(run.job_id, ["CANCELLED"])
    assert set(_rescue_jobs(run)) == {rescue}


def test_a_requeue_by_the_agent_starts_no_rescue_job(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "40", "--pace", "0.05", "--fail", "signal:SEGV", "--fail-launches", "1",
                      "--fail-at", "20")  # fmt: skip
    run = submit(cluster, store, command, name="again", nodes=1, rescue=True, retry={"in_place": 0, "delay_s": 0})
    (rescue,) = _rescue_jobs(run)
    run.wait_started(2)
    assert _rescue_jobs(run) == {rescue: "PENDING"}
    run.wait_state("Completed", timeout_s=120)
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    wait_until(lambda: _rescue_jobs(run) in ({rescue: "CANCELLED"}, {}), 60, "Slurm removes what can never start")
    cluster.wait_accounting(rescue, ["CANCELLED"])
