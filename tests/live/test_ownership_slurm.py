"""Rows of ``core.endings``: Slurm takes the job away, or never starts it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack import batch_side, steady, watch_until
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit

pytestmark = pytest.mark.timeout(400)


def completes(run: LiveRun, steps: int, timeout_s: float = 150) -> None:
    run.wait_state("Completed", timeout_s=timeout_s)
    assert_whole(run.checkpoints, steps)


def forbid_requeue(cluster: Cluster, run: LiveRun) -> None:
    cluster.slurm("scontrol", "update", f"JobId={run.job_id}", "Requeue=0")


def goes_on_as_a_new_job(cluster: Cluster, run: LiveRun, word: str, steps: int) -> None:
    """The watcher decides, and the old job stays as it is."""
    watch_until(run, lambda: len(run.starts()) > 1, "a new job of the run trains")
    completes(run, steps)
    wait_until(lambda: cluster.states_of(run.job_id)[-1:] == [word], 60, f"{word} in accounting")
    assert run.status()["job_id"] != str(run.job_id)
    assert run.starts() == ["0.0", "1.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["watcher", "agent"]


def preempt(cluster: Cluster, node: str) -> None:
    where = ["-p", cluster.partition("urgent"), "-w", node, "-N1", "--exclusive", "-t", "1"]
    urgent = cluster.sbatch(*where, script="#!/bin/bash\nsleep 3\n")
    cluster.wait_state(urgent, "RUNNING", "COMPLETED", timeout_s=90)


@pytest.mark.docker_too
def test_preempted_without_requeue_goes_on_as_a_new_job(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=1, retry={"requeues": 0, "in_place": 0})
    run.wait_step(10)
    forbid_requeue(cluster, run)
    preempt(cluster, cluster.job(run.job_id).nodes[0])  # type: ignore[union-attr]
    cluster.wait_state(run.job_id, "PREEMPTED", timeout_s=60)
    goes_on_as_a_new_job(cluster, run, "PREEMPTED", 60)
    assert run.decisions()[0]["budget"] == "none"


@pytest.mark.nodes(2)
def test_node_fail_without_requeue_goes_on_as_a_new_job(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=1)
    run.wait_step(10)
    forbid_requeue(cluster, run)
    node = cluster.job(run.job_id).nodes[0]  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    cluster.wait_state(run.job_id, "NODE_FAIL", timeout_s=60)
    goes_on_as_a_new_job(cluster, run, "NODE_FAIL", 60)
    assert run.decisions()[0]["budget"] == "infrastructure"


BOOT_FAILED = """
import ctypes, glob, sys
slurm = ctypes.CDLL(glob.glob("/usr/lib/*/slurm*/libslurmfull.so")[0], mode=ctypes.RTLD_GLOBAL)
slurm.slurm_init(None)
reconfig_fail = ctypes.c_uint32(1 << 17)  # JOB_RECONFIG_FAIL
slurm.slurm_requeue2(sys.argv[1].encode(), reconfig_fail, ctypes.byref(ctypes.c_void_p()))
"""


@pytest.mark.docker_too
def test_boot_fail_without_requeue_goes_on_as_a_new_job(cluster: Cluster, store: Path) -> None:
    """slurmctld gives this state to no job by itself: a site's boot scripts ask for it, by this call of Slurm's API."""
    run = submit(cluster, store, steady(store), nodes=1)
    run.wait_step(10)
    forbid_requeue(cluster, run)
    cluster.as_root("python3", "-c", BOOT_FAILED, str(run.job_id))
    cluster.wait_state(run.job_id, "BOOT_FAIL", timeout_s=60)
    goes_on_as_a_new_job(cluster, run, "BOOT_FAIL", 60)
    assert run.decisions()[0]["budget"] == "infrastructure"


@pytest.mark.nodes(3)
@pytest.mark.native_only
def test_the_batch_host_is_lost(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 150), nodes=2)
    run.wait_step(10)
    victim = cluster.job(run.job_id).nodes[0]  # type: ignore[union-attr]
    assert batch_side(run, "agent")[0].node == victim
    cluster.kill_node(victim)
    wait_until(lambda: "NODE_FAIL" in cluster.states_of(run.job_id), 120, "Slurm declares the node lost")
    run.watch_once()
    completes(run, 150, timeout_s=240)
    assert run.starts() == ["0.0", "1.0"]
    decisions = run.decisions()
    assert [d["decided_by"] for d in decisions] == ["gate", "agent"]
    assert (decisions[0]["cause"], decisions[0]["budget"]) == ("node_fail", "infrastructure")


@pytest.mark.docker_too
@pytest.mark.nodes(3)
def test_a_node_that_an_administrator_sets_down(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 100), nodes=2)
    run.wait_step(10)
    victim = cluster.job(run.job_id).nodes[-1]  # type: ignore[union-attr]
    cluster.slurm("scontrol", "update", f"NodeName={victim}", "State=DOWN", "Reason=test")
    completes(run, 100)
    assert run.starts() == ["0.0", "1.0"]
    decisions = run.decisions()
    assert [d["decided_by"] for d in decisions] == ["gate", "agent"]
    assert decisions[0]["budget"] == "infrastructure"


def test_a_frozen_agent_lets_the_time_limit_pass(cluster: Cluster, store: Path) -> None:
    run = submit(
        cluster, store, steady(store, 700, "--on-stop", "ignore"), nodes=1, time_limit="1", stop={"warning_s": 15}
    )
    run.wait_step(5)
    (agent,) = batch_side(run, "agent")
    cluster.signal_process(agent, signal.SIGSTOP)
    cluster.wait_state(run.job_id, "TIMEOUT", timeout_s=200)
    cluster.slurm("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=10", check=False)
    watch_until(run, lambda: len(run.starts()) > 1, "the job runs again")
    assert run.records("start")[-1]["step"] >= 100, "from the newest checkpoint"
    decision = run.decisions()[0]
    assert (decision["decided_by"], decision["cause"], decision["budget"]) == ("watcher", "time_limit", "none")


@contextmanager
def configured(cluster: Cluster, lines: str) -> Iterator[None]:
    """More lines in slurm.conf for a while."""
    conf = Path(cluster.facts["slurm_conf"])
    before = conf.read_text()
    conf.write_text(f"{before}\n{lines}\n")
    cluster.slurm("scontrol", "reconfigure")
    try:
        yield
    finally:
        conf.write_text(before)
        cluster.slurm("scontrol", "reconfigure")


@pytest.mark.whole_cluster
@pytest.mark.native_only
def test_a_prolog_that_fails_holds_the_job_until_it_is_released(cluster: Cluster, store: Path) -> None:
    prolog = Path(cluster.facts["dir"]) / "prolog-that-fails"
    prolog.write_text("#!/bin/bash\nexit 1\n")
    prolog.chmod(0o755)
    with configured(cluster, f"Prolog={prolog}"):
        run = submit(cluster, store, steady(store, 10), nodes=1)
        wait_until(lambda: (j := cluster.job(run.job_id)) and "held" in j.reason.lower(), 60, "Slurm holds the job")
        run.watch_once()
        job = cluster.job(run.job_id)
        assert job is not None
        print(job)
        assert run.starts() == []
        assert not run.decisions()
        assert "could not start it" in run.status()["reason"] or "held" in run.status()["reason"]
    prolog.unlink()
    cluster.resume_nodes()
    cluster.as_user("scontrol", "release", str(run.job_id))
    completes(run, 10)
    assert run.starts() == ["0.0"]


@pytest.mark.docker_too
def test_a_deadline_that_passes_in_the_queue(cluster: Cluster, store: Path) -> None:
    """It waits for a node: with ``--begin`` instead, 24.11 and later refuse what leaves no time."""
    node = cluster.nodes[0]
    blocker = cluster.sbatch("-w", node, "--exclusive", "-o", "/dev/null", script="#!/bin/bash\nsleep 600\n")
    cluster.wait_state(blocker, "RUNNING")
    asked = {"nodelist": node, "sbatch_options": ["--deadline=now+80seconds"]}
    run = submit(cluster, store, steady(store, 10), nodes=1, time_limit="1", resources={**asked, "exclusive": True})
    cluster.wait_state(run.job_id, "DEADLINE", timeout_s=120)
    watch_until(run, run.decisions, "the watcher writes it down")
    run.wait_state("Failed")
    assert run.starts() == []
    time.sleep(3)
    row = cluster.job(run.job_id)
    assert row is None or row.state == "DEADLINE", "purged on a slow machine, but never queued again"
