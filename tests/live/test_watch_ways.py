"""Ways to run the watcher without a person, on a real Slurm: as a job, and several that take turns."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, slurmtrain, submit, trainer

pytestmark = pytest.mark.timeout(600)


def _start_watcher_job(cluster: Cluster, store: Path, *words: str) -> int:
    out = slurmtrain(cluster, store, "watch", "--as-job", "-p", cluster.partition(), "--interval", "2", *words).stdout
    found = re.match(r"job (\d+) looks after", out)
    assert found, out
    return int(found[1])


def _kill_script_and_agent(run: LiveRun) -> None:
    """Nobody inside the job can decide any more."""
    shells = [p for p in run.cluster.processes(run.job_id) if not p.in_step]
    script = [p for p in shells if any("slurm_script" in word for word in p.argv)]
    agents = [p for p in shells if "attempt" in p.argv]
    assert script
    assert agents
    for process in (*script, *agents, *run.rank_processes()):
        run.cluster.signal_process(process, signal.SIGKILL)


@pytest.mark.docker_too
def test_a_watcher_job_recovers_a_run_and_ends_with_it(cluster: Cluster, store: Path) -> None:
    command = trainer(store, "--steps", "60", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, nodes=1)
    watcher = _start_watcher_job(cluster, store)
    again = slurmtrain(cluster, store, "watch", "--as-job", "-p", cluster.partition()).stdout
    assert f"job {watcher} watches" in again, "never two for one store"
    cluster.wait_state(watcher, "RUNNING")
    run.wait_step(10)
    _kill_script_and_agent(run)
    run.wait_state("Completed", timeout_s=150)
    assert_whole(run.checkpoints, 60)
    cluster.wait_state(watcher, "COMPLETED", timeout_s=60)
    log = (store / "watch" / f"job-{watcher}.log").read_text()
    assert "no run is left" in log


def test_a_watcher_job_comes_back_before_its_limit_until_it_is_cancelled(cluster: Cluster, store: Path) -> None:
    """One job id for ever, so that one scancel ends it for good."""
    submit(cluster, store, trainer(store), resources={"sbatch_options": ["--begin=now+1hour"]})
    watcher = _start_watcher_job(cluster, store, "-t", "1")
    wait_until(lambda: "REQUEUED" in cluster.states_of(watcher), 120, "it requeues itself")
    row = cluster.wait_state(watcher, "RUNNING", timeout_s=60)
    assert row.restarts == 1
    wait_until(lambda: "goes on in a moment" in (store / "watch" / f"job-{watcher}.log").read_text(), 30, "it says so")
    cluster.as_user("scancel", str(watcher))
    cluster.wait_state(watcher, "CANCELLED")
    time.sleep(10)
    assert cluster.wait_state(watcher, "CANCELLED").restarts == 1, "no watcher was left, and none came back"
    queue = ("squeue", "-h", "-u", cluster.user, "-p", cluster.partition(), "-o", "%i %j %T")  # other lanes have theirs
    names = cluster.slurm(*queue).splitlines()
    assert not [line for line in names if "slurmtrain-watch" in line and line.split()[0] != str(watcher)]


@pytest.mark.native_only
def test_watchers_take_turns_and_a_dead_one_is_replaced(cluster: Cluster, store: Path) -> None:
    """The lease of a watcher that looks every second runs out after a minute."""
    command = trainer(store, "--steps", "60", "--pace", "0.1", "--checkpoint-every", "5")
    run = submit(cluster, store, command, nodes=1)
    user = cluster.facts["user"]
    words = [f"{cluster.facts['venv']}/bin/slurmtrain", "watch", "--interval", "1", "--store", str(store), "--json"]

    def start(name: str) -> subprocess.Popen[bytes]:
        with (store / name).open("wb") as out:
            return subprocess.Popen(
                words, env=cluster.user_env(), cwd=store, stdout=out, stderr=out, user=user["uid"], group=user["gid"],
                extra_groups=[],
            )  # fmt: skip

    def holder() -> int:
        lease = store / "watch.lease"
        return int(json.loads(lease.read_text())["pid"]) if lease.exists() else 0

    first = start("first")
    try:
        wait_until(lambda: holder() == first.pid, 30, "the first watcher has the lease")
        second = start("second")
        try:
            run.wait_step(5)
            time.sleep(3)
            assert holder() == first.pid
            assert second.poll() is None
            assert (store / "second").read_bytes() == b"", "it leaves everything to the first"
            first.kill()
            first.wait(10)
            _kill_script_and_agent(run)
            wait_until(lambda: holder() == second.pid, 120, "the second watcher takes the lease over")
            run.wait_state("Completed", timeout_s=150)
            assert_whole(run.checkpoints, 60)
            assert "requeue" in (store / "second").read_text()
        finally:
            second.terminate()
            second.wait(20)
    finally:
        first.kill()
        first.wait(10)
