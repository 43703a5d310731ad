"""Rows of ``core.endings``: somebody has a hand in a run, through Slurm's own commands."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest
from attack import crash_once, steady, watch_until
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit

pytestmark = pytest.mark.timeout(400)

NO_RETRIES = {"requeues": 0, "in_place": 0}


def completes(run: LiveRun, steps: int, timeout_s: float = 120) -> None:
    run.wait_state("Completed", timeout_s=timeout_s)
    assert_whole(run.checkpoints, steps)


def by(cluster: Cluster, who: str, *command: str) -> None:
    done = (cluster.as_user if who == "owner" else cluster.as_root)(*command)
    assert done.returncode == 0, done.stderr


@pytest.mark.docker_too
def test_suspended_and_resumed(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=2)
    run.wait_step(10)
    by(cluster, "admin", "scontrol", "suspend", str(run.job_id))
    cluster.wait_state(run.job_id, "SUSPENDED")
    run.watch_once()
    time.sleep(5)
    step = run.newest_step()
    time.sleep(3)
    assert run.newest_step() == step, "it stands still"
    assert not run.decisions()
    by(cluster, "admin", "scontrol", "resume", str(run.job_id))
    completes(run, 60)
    assert run.starts() == ["0.0"]


def test_a_job_that_is_made_smaller(cluster: Cluster, store: Path) -> None:
    """Slurm ends the ranks of the node that leaves; a requeue gives the job its size back."""
    run = submit(cluster, store, steady(store), nodes=2, retry={"requeues": 0, "delay_s": 0})
    run.wait_step(10)
    by(cluster, "owner", "scontrol", "update", f"JobId={run.job_id}", "NumNodes=1")
    completes(run, 60)
    assert run.starts() == ["0.0", "1.0"], "not in place: srun would wait for the second node for ever"
    assert {row["world"] for row in run.records("start")} == {2}
    assert [(d["decided_by"], d["budget"]) for d in run.decisions()] == [("agent", "none"), ("agent", "none")]
    wait_until(lambda: "RESIZING" in cluster.states_of(run.job_id), 60, "the row of the time before, in accounting")


@pytest.mark.docker_too
def test_a_requeue_by_an_administrator(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=2, retry=NO_RETRIES)
    run.wait_step(10)
    by(cluster, "admin", "scontrol", "requeue", str(run.job_id))
    completes(run, 60)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    assert run.starts() == ["0.0", "1.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["gate", "agent"]
    assert [d["budget"] for d in run.decisions()] == ["none", "none"]


@pytest.mark.docker_too
@pytest.mark.parametrize("who", ["owner", "admin"])
@pytest.mark.parametrize("how", ["", "State=SpecialExit"])
def test_a_job_that_is_requeued_and_held(cluster: Cluster, store: Path, who: str, how: str) -> None:
    run = submit(cluster, store, steady(store), nodes=2, retry=NO_RETRIES)
    run.wait_step(10)
    by(cluster, who, "scontrol", "requeuehold", *([how] if how else []), str(run.job_id))
    state = "SPECIAL_EXIT" if how else "REQUEUE_HOLD"
    cluster.wait_state(run.job_id, state, "PENDING", timeout_s=60)
    wait_until(lambda: not run.rank_processes(), 40, "its ranks are gone")
    run.watch_once()
    time.sleep(4)
    run.watch_once()
    job = cluster.job(run.job_id)
    assert job is not None
    assert job.state in {state, "PENDING"}, "nobody here releases it"
    assert "held" in job.reason.lower()
    assert not run.decisions()
    assert run.status()["state"] == "Inqueue"
    assert "held" in run.status()["reason"]
    by(cluster, who, "scontrol", "release", str(run.job_id))
    completes(run, 60)
    assert run.starts() == ["0.0", "1.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["gate", "agent"]


@pytest.mark.docker_too
@pytest.mark.parametrize("who", ["owner", "admin"])
def test_a_job_held_while_it_waits(cluster: Cluster, store: Path, who: str) -> None:
    later = {"sbatch_options": ["--begin=now+4"]}
    run = submit(cluster, store, steady(store, 10), nodes=1, resources=later)
    by(cluster, who, "scontrol", "hold", str(run.job_id))
    time.sleep(6)
    run.watch_once()
    job = cluster.job(run.job_id)
    assert job is not None
    assert job.state == "PENDING"
    assert "held" in run.status()["reason"] or "holds" in run.status()["reason"]
    by(cluster, who, "scontrol", "release", str(run.job_id))
    completes(run, 10)


@pytest.mark.docker_too
def test_requeue_switched_off_by_hand(cluster: Cluster, store: Path) -> None:
    retry = {"in_place": 0, "delay_s": 0}
    run = submit(cluster, store, steady(store, 40, *crash_once(25)), nodes=1, retry=retry)
    run.wait_step(10)
    by(cluster, "owner", "scontrol", "update", f"JobId={run.job_id}", "Requeue=0")
    cluster.wait_state(run.job_id, "FAILED", timeout_s=60)
    watch_until(run, lambda: len(run.starts()) > 1, "a new job of the run trains")
    completes(run, 40)
    job = cluster.job(run.job_id)
    assert job is None or (job.state, job.restarts) == ("FAILED", 0)
    assert run.status()["job_id"] != str(run.job_id)
    assert run.starts() == ["0.0", "1.0"]


@pytest.mark.docker_too
def test_cancelled_by_an_administrator(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 300), nodes=2)
    run.wait_step(5)
    by(cluster, "admin", "scancel", str(run.job_id))
    run.wait_slurm("CANCELLED")
    run.ended_states()
    watch_until(run, run.decisions, "the watcher writes it down")
    run.wait_state("Terminated")
    time.sleep(6)
    run.watch_once()
    assert cluster.job(run.job_id).state == "CANCELLED"  # type: ignore[union-attr]
    assert [d["action"] for d in run.decisions()] == ["leave"]


@pytest.mark.docker_too
def test_cancelled_in_the_queue(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 10), nodes=1, resources={"sbatch_options": ["--begin=now+600"]})
    by(cluster, "owner", "scancel", str(run.job_id))
    run.wait_slurm("CANCELLED")
    run.watch_once()
    run.wait_state("Stopped")
    assert run.starts() == []
    assert [(d["action"], d["decided_by"]) for d in run.decisions()] == [("leave", "watcher")]


@pytest.mark.docker_too
@pytest.mark.parametrize("submission", ["0", "7"])
def test_a_second_job_of_the_run_ends_itself(cluster: Cluster, store: Path, submission: str) -> None:
    """Also under a submission number that nobody knows."""
    run = submit(cluster, store, steady(store, 80), nodes=1)
    run.wait_step(5)
    done = cluster.as_user("sbatch", "--parsable", str(run.path / "job.sbatch"), submission, cwd=run.workdir)
    assert done.returncode == 0, done.stderr
    second = int(done.stdout.split(";")[0])
    cluster.wait_state(second, "COMPLETED", timeout_s=60)
    assert len(run.rank_processes()) > 0, "the first goes on"
    completes(run, 80)
    assert run.starts() == ["0.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["agent"]


@pytest.mark.docker_too
def test_a_finished_job_that_is_started_again(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 10), nodes=1)
    completes(run, 10)
    run.wait_slurm("COMPLETED")
    by(cluster, "owner", "scontrol", "requeue", str(run.job_id))
    wait_until(
        lambda: (j := cluster.job(run.job_id)) and j.restarts == 1 and j.state == "COMPLETED", 60, "it ends again"
    )
    assert run.starts() == ["0.0"], "without training"
    assert run.status()["state"] == "Completed"
    assert len(run.decisions()) == 1


@pytest.mark.docker_too
@pytest.mark.parametrize("moment", ["running", "waiting"])
def test_a_colleague_stops_a_run_by_a_file(cluster: Cluster, store: Path, moment: str) -> None:
    """Another user, who can write in a folder of the project and nowhere in the run directory."""
    folder = cluster.store.parent / f"{store.name}-stop"  # beside the researcher's own, which nobody else can enter
    folder.mkdir()
    folder.chmod(0o777)
    options = {"sbatch_options": ["--begin=now+5"]} if moment == "waiting" else {}
    run = submit(cluster, store, steady(store, 600), nodes=2, stop={"folder": str(folder)}, resources=options)
    if moment == "running":
        run.wait_step(5)
    nobody = 65534
    denied = subprocess.run(["touch", str(run.path / "stop")], user=nobody, group=nobody, capture_output=True)
    assert denied.returncode != 0
    subprocess.run(["touch", str(folder / run.run_id)], user=nobody, group=nobody, check=True)
    run.wait_state("Stopped")
    assert cluster.wait_state(run.job_id, "COMPLETED", "FAILED").restarts == 0
    if moment == "running":
        assert {row["rank"] for row in run.records("left")} == {0, 1}
    else:
        assert run.starts() == []
    told = " ".join(run.slurmtrain("explain", run.run_id, "--timeline").stdout.split())
    assert "nobody, by the file" in told
    assert run.slurmtrain("wait", run.run_id, check=False).returncode == 1
    shutil.rmtree(folder)
