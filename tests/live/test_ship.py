"""Runs that are shipped to a real S3 server while they train, when they end, and after their node was lost."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from ceph import Ceph
from cluster import Cluster, wait_until
from runs import LiveRun, slurmtrain, submit, trainer
from ship_env import Bucket, ceph, ship_venv, wait_for_object

__all__ = ["ceph", "ship_venv"]

pytestmark = [pytest.mark.native_only, pytest.mark.timeout(900)]

SECRET = "sesameOpening7"
NO_RETRIES = {"requeues": 0, "in_place": 0, "infrastructure": 0}


def user_env(cluster: Cluster, venv: Path, server: Ceph) -> dict[str, str]:
    """As a user who has installed ``slurmtrain[ship]``, with keys for the storage and one for something else."""
    path = f"{venv}/bin:{cluster.user_env()['PATH']}"
    return {**server.environ, "PATH": path, "WANDB_API_KEY": SECRET}


def talking_trainer(store: Path, *arguments: str) -> list[str]:
    """The training, behind a shell that prints a secret of its environment."""
    return ["bash", "-c", f'echo "my key is $WANDB_API_KEY"; exec {shlex.join(trainer(store, *arguments))}']


def ship_to(bucket: Bucket, **more: object) -> dict[str, object]:
    return {"url": f"s3://{bucket.name}/runs", "every_s": 5, **more}


def masked(path: Path) -> bytes:
    return path.read_bytes().replace(SECRET.encode(), b"***")


def log_of(run: LiveRun) -> tuple[Path, str]:
    """The job's log here, and its name there."""
    path = run.path / f"logs/train-{run.job_id}.log"
    return path, f"runs/{run.run_id}/logs/{path.name}"


def manifest(bucket: Bucket, run: LiveRun) -> Mapping[str, object]:
    found: Mapping[str, object] = json.loads(bucket.contents()[f"runs/{run.run_id}/manifest.json"])
    return found


def test_the_log_is_there_while_it_trains_and_its_last_lines_when_it_ends(
    cluster: Cluster, store: Path, ship_venv: Path, ceph: Ceph
) -> None:
    bucket = Bucket(ship_venv, ceph, "b-while-it-trains")
    env = user_env(cluster, ship_venv, ceph)
    command = talking_trainer(store, "--steps", "300", "--pace", "0.1")
    ship = ship_to(bucket, what=["logs", "records", "checkpoints"])
    run = submit(cluster, store, command, nodes=1, ship=ship, env=env)
    local, remote = log_of(run)
    wait_for_object(bucket, remote)
    run.wait_slurm("RUNNING")
    run.wait_step(20)
    there = bucket.contents()[remote]
    assert masked(local).startswith(there)
    progress = run.status()["progress"]
    assert progress["target_step"] == 300
    assert 0 < progress["step"] <= 300
    run.wait_state("Completed", timeout_s=300)
    run.wait_slurm("COMPLETED")
    assert cluster.processes(run.job_id) == [], "nothing of the job is left behind"
    there = bucket.contents()
    assert masked(local).startswith(there[remote])
    assert len(there[remote]) > 0.9 * local.stat().st_size, "the last pass came before the end of the job"
    assert manifest(bucket, run)["complete"] is False
    slurmtrain(cluster, store, "ship", run.run_id, "--follow", env=env)
    there = bucket.contents()
    assert there[remote] == masked(local)
    assert f"my key is {SECRET}".encode() in local.read_bytes()
    assert SECRET.encode() not in b"".join(there.values())
    assert manifest(bucket, run)["complete"] is True
    names = [name for name in there if name.endswith(".whole.json")]
    assert len(names) == 1, "the newest checkpoint alone"
    newest = names[0].removesuffix(".whole.json")
    assert there[newest] == (run.checkpoints / newest.rpartition("/")[2]).read_bytes()
    assert run.ended_states() == ["COMPLETED"]


def test_what_a_lost_node_left_is_shipped_by_the_watcher(
    cluster: Cluster, store: Path, ship_venv: Path, ceph: Ceph
) -> None:
    bucket = Bucket(ship_venv, ceph, "b-lost-node")
    env = user_env(cluster, ship_venv, ceph)
    command = talking_trainer(store, "--steps", "3000", "--pace", "0.1")
    run = submit(cluster, store, command, nodes=1, ship=ship_to(bucket), retry=NO_RETRIES, env=env)
    local, remote = log_of(run)
    wait_for_object(bucket, remote)
    job = cluster.job(run.job_id)
    assert job is not None
    cluster.kill_node(job.nodes[0])

    def is_complete() -> bool:
        slurmtrain(cluster, store, "watch", "--once", env=env)
        return run.status()["state"] == "Failed" and manifest(bucket, run)["complete"] is True

    wait_until(is_complete, 500, "the watcher has seen the end and shipped the rest", 3.0)
    there = bucket.contents()
    assert there[remote] == masked(local)
    assert SECRET.encode() in local.read_bytes()
    assert SECRET.encode() not in b"".join(there.values()), (
        "the watcher's host does not know the job's secret by itself"
    )


def test_a_node_that_cannot_ship_trains_all_the_same_and_says_so_once(
    cluster: Cluster, store: Path, ship_venv: Path, ceph: Ceph
) -> None:
    """The slurmtrain that submits has no fsspec; later somebody ships with one that has."""
    bucket = Bucket(ship_venv, ceph, "b-cannot-ship")
    env = {**ceph.environ, "WANDB_API_KEY": SECRET}
    command = talking_trainer(store, "--steps", "100", "--pace", "0.1")
    run = submit(cluster, store, command, nodes=1, ship=ship_to(bucket), env=env)
    run.wait_state("Completed", timeout_s=200)
    assert run.log().count("needs fsspec: pip install 'slurmtrain[ship]'") == 1
    local, remote = log_of(run)
    assert bucket.names() == []
    with_fsspec = {key: value for key, value in user_env(cluster, ship_venv, ceph).items() if key != "WANDB_API_KEY"}
    slurmtrain(cluster, store, "ship", run.run_id, "--follow", env=with_fsspec)
    assert bucket.contents()[remote] == masked(local)


def test_a_storage_that_is_away_delays_no_job(cluster: Cluster, store: Path, ship_venv: Path, ceph: Ceph) -> None:
    bucket = Bucket(ship_venv, ceph, "b-away")
    env = {**user_env(cluster, ship_venv, ceph), "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    ship = ship_to(bucket, linger_s=3)
    run = submit(cluster, store, talking_trainer(store, "--steps", "150", "--pace", "0.1"), nodes=1, ship=ship, env=env)
    run.wait_state("Completed", timeout_s=200)
    ended = max(row["at"] for row in run.records())
    run.wait_slurm("COMPLETED")
    assert time.time() - ended < 60
    assert run.log().count("the storage does not answer") <= 1
    assert run.ended_states() == ["COMPLETED"]
