"""The command-line client on a real cluster: the contract, and what only the real slurmctld can prove."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import PATH, Cluster, wait_until
from live_stage import LiveStage, ResearcherHost

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running
from slurmtrain.errors import SlurmUnavailableError
from slurmtrain.hosts.local import LocalHost
from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.testing.contract import SlurmClientContract
from slurmtrain.testing.expect import STUBBORN, ended, started


@pytest.fixture
def stage(cluster: Cluster, store: Path) -> LiveStage:
    return LiveStage(cluster, store)


@pytest.mark.needs_accounting
class TestCliClient(SlurmClientContract):
    pass


def _at_once(*calls: object) -> None:
    threads = [threading.Thread(target=call) for call in calls]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.any_timers
def test_scancel_beats_an_agents_requeue_whichever_comes_first(stage: LiveStage) -> None:
    """100 races between scancel and ``requeue(only_running=True)``: the job stays cancelled every time."""
    orders: set[int] = set()
    for batch in range(10):
        jobs = [stage.submit(behaviour=STUBBORN) for _ in range(10)]
        for job_id in jobs:
            started(stage, job_id)
        for number, job_id in enumerate(jobs):
            delay_s = (number - 4.5) * 0.001

            def cancel(job_id: JobId = job_id, delay_s: float = delay_s) -> None:
                time.sleep(max(0.0, delay_s))
                stage.client.cancel(job_id)

            def requeue(job_id: JobId = job_id, delay_s: float = delay_s) -> None:
                time.sleep(max(0.0, -delay_s))
                stage.client.requeue(job_id, only_running=True)

            _at_once(cancel, requeue)
        for job_id in jobs:
            orders.add(ended(stage, job_id, BaseState.CANCELLED).restart_count)
        if batch == 9:
            assert orders == {0, 1}, "each side must have come first at least once, or nothing was proved"


def test_the_seeded_fault_a_plain_requeue_revives_a_cancelled_job(stage: LiveStage) -> None:
    """The reason for ``only_running``: without it the user's scancel is undone."""
    job_id = stage.submit(behaviour=STUBBORN)
    started(stage, job_id)
    stage.client.cancel(job_id)
    stage.client.requeue(job_id, only_running=False)
    assert started(stage, job_id, restarts=1).restart_count == 1


def test_requeue_from_inside_the_job(cluster: Cluster, store: Path, stage: LiveStage) -> None:
    """The fast requeue as the agent does it: TERM ignored, requeue, then another node and an early start."""
    script = """#!/bin/bash
trap '' TERM
echo "${SLURM_RESTART_COUNT:-0} $SLURMD_NODENAME $(date +%s.%N)" >> runs
if [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then
    scontrol requeue Incomplete "$SLURM_JOB_ID" || exit 3
    scontrol update JobId="$SLURM_JOB_ID" StartTime=now+4 ExcNodeList="$SLURMD_NODENAME" || exit 4
fi
"""
    job_id = JobId(cluster.sbatch("--requeue", "-o", "/dev/null", script=script, cwd=store))
    ended(stage, job_id, BaseState.COMPLETED)
    first, second = (
        (int(n), node, float(at)) for n, node, at in map(str.split, (store / "runs").read_text().splitlines())
    )
    assert (first[0], second[0]) == (0, 1)
    assert first[1] != second[1]
    assert 3 <= second[2] - first[2] < 10


@pytest.mark.whole_cluster
def test_a_hung_controller_is_unavailable_not_an_empty_queue(cluster: Cluster, stage: LiveStage) -> None:
    job_id = stage.submit()
    started(stage, job_id)
    cluster.stop_daemon("slurmctld")
    try:
        with pytest.raises(SlurmUnavailableError):
            stage.client.observe()
        with pytest.raises(SlurmUnavailableError):
            stage.client.requeue(job_id, only_running=True)
    finally:
        cluster.cont_daemon("slurmctld")
    assert stage.client.observe([job_id]).jobs[job_id].restart_count in (0, 1)


@pytest.mark.whole_cluster
def test_a_dead_controller_is_unavailable(cluster: Cluster, stage: LiveStage) -> None:
    job_id = stage.submit()
    started(stage, job_id)
    stage.pause(8)  # slurmctld writes its state every 5 s; killed before, it forgets the job
    cluster.kill_daemon("slurmctld")
    try:
        for call in (stage.client.observe, stage.client.nodes, lambda: stage.client.requeue(job_id, only_running=True)):
            with pytest.raises(SlurmUnavailableError):
                call()
        with pytest.raises(SlurmUnavailableError):
            stage.submit()
    finally:
        cluster.start_daemon("slurmctld")
    assert is_running(started(stage, job_id).state)


@pytest.mark.whole_cluster
@pytest.mark.needs_accounting
def test_a_dead_database_is_unavailable_not_an_empty_history(cluster: Cluster, stage: LiveStage) -> None:
    job_id = stage.submit()
    started(stage, job_id)
    cluster.kill_daemon("slurmdbd")
    try:
        with pytest.raises(SlurmUnavailableError):
            stage.client.history([job_id])
        assert stage.client.observe([job_id]).jobs
    finally:
        cluster.start_daemon("slurmdbd")


def test_the_environment_of_a_job_does_not_reach_sbatch_and_squeue(cluster: Cluster, stage: LiveStage) -> None:
    """Inside a job SLURM_JOB_ID and friends are options; a user's SQUEUE_FORMAT would change what is parsed."""
    hostile = {
        "SLURM_JOB_ID": "1", "SLURM_NTASKS": "99", "SBATCH_PARTITION": "nowhere", "SBATCH_TIMELIMIT": "1",
        "SQUEUE_FORMAT": "%j", "SQUEUE_STATES": "SUSPENDED", "SQUEUE_PARTITION": "nowhere", "SLURM_TIME_FORMAT": "%Y",
        "SLURM_CLUSTERS": "nowhere", "SACCT_FORMAT": "user", "TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8",
    }  # fmt: skip
    stage.client = CliSlurmClient(ResearcherHost(cluster), environ={**cluster.user_env(), **hostile})
    job_id = stage.submit("--time=0:20:00")
    job = started(stage, job_id)
    assert job.time_limit == timedelta(minutes=20)
    assert job.start_time is not None
    assert abs(job.start_time.timestamp() - time.time()) < 120
    scripts = wait_until(
        lambda: [process for process in cluster.processes(job_id.base) if process.argv[:1] == ["/bin/bash"]],
        20,
        "the batch script's process",
    )
    environ = scripts[0].environ
    assert environ.get("TZ") == "Asia/Tokyo"  # the user's own, not ours
    assert environ.get("SLURM_JOB_ID") == str(job_id)
    assert "SBATCH_PARTITION" not in environ


@pytest.mark.native_only
def test_a_user_is_shown_only_their_own_jobs_and_root_those_asked_for(cluster: Cluster, stage: LiveStage) -> None:
    answer = cluster.slurm(
        "sbatch", "--parsable", "-o", "/dev/null", "-p", stage.partition("batch"), "--wrap", "sleep 99"
    )
    roots, own = JobId(int(answer)), stage.submit()
    started(stage, own)
    assert own in stage.client.observe().jobs
    assert roots not in stage.client.observe().jobs
    root = CliSlurmClient(LocalHost(), environ={"PATH": PATH, "SLURM_CONF": str(cluster.facts["slurm_conf"])})
    assert set(root.observe([own, roots]).jobs) == {own, roots}
    assert own not in root.observe().jobs


def test_the_answer_to_test_only_is_a_sentence(stage: LiveStage, store: Path) -> None:
    script = store / "fine.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH -p {stage.partition('batch')}\ntrue\n", encoding="utf-8")
    assert "to start at" in stage.client.check_submit(script)
