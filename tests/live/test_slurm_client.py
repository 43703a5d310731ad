"""The command-line client on a real cluster: the contract, and what only the real slurmctld can prove."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from cluster import Cluster

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running
from slurmtrain.errors import SlurmUnavailableError
from slurmtrain.hosts.local import CommandResult
from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.testing.contract import STUBBORN, SlurmClientContract, ended, started
from slurmtrain.testing.memory_model import Behaviour
from slurmtrain.testing.stage import OBEDIENT

# A script that ends when and how the test says, by a file named after its execution.
SCRIPT = """#!/bin/bash
{trap}
id=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
order="{directory}/${{id:-$SLURM_JOB_ID}}.${{SLURM_RESTART_COUNT:-0}}"
{step}
while [ ! -e "$order" ]; do sleep 0.1; done
eval "$(cat "$order")"
"""


class ResearcherHost:
    """Commands of the unprivileged user of the test cluster, native or in containers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CommandResult:
        done = self._cluster.as_user(*argv, env=env, cwd=cwd, timeout_s=timeout_s, stdin=stdin)
        return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)


class LiveStage:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self.client = CliSlurmClient(ResearcherHost(cluster), environ=cluster.user_env())
        self.nodes: Sequence[str] = cluster.nodes

    def partition(self, kind: str) -> str:
        return self._cluster.partition(kind)

    def submit(self, *options: str, behaviour: Behaviour = OBEDIENT) -> JobId:
        trap = "trap '' TERM" if behaviour.ignores_term else ""
        step = "srun --output=/dev/null sleep 900 &" if behaviour.step else ""
        script = self._directory / f"job-{time.monotonic_ns()}.sh"
        script.write_text(SCRIPT.format(trap=trap, step=step, directory=self._directory), encoding="utf-8")
        chosen = options if "-p" in options else (*options, "-p", self.partition("batch"))
        return self.client.submit(script, options=["-o", "/dev/null", *chosen], cwd=self._directory)

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        restarts = self.client.observe([job_id]).jobs[job_id].restart_count
        order = self._directory / f"{job_id}.{restarts}"
        words = f"kill -{signal} $$; sleep 9" if signal else f"exit {exit_code}"
        order.with_suffix(".new").write_text(words, encoding="utf-8")
        order.with_suffix(".new").rename(order)

    def cancel_as_root(self, job_id: JobId) -> None:
        self._cluster.slurm("scancel", str(job_id))

    def fail_node(self, name: str) -> None:
        self._cluster.slurm("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")

    def drain_node(self, name: str) -> None:
        self._cluster.slurm("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=test|of us")

    def restore_node(self, name: str) -> None:
        self._cluster.resume_nodes()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


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
    environ = next(process.environ for process in cluster.processes(job_id.base) if process.argv[:1] == ["/bin/bash"])
    assert environ.get("TZ") == "Asia/Tokyo"  # the user's own, not ours
    assert environ.get("SLURM_JOB_ID") == str(job_id)
    assert "SBATCH_PARTITION" not in environ


def test_a_user_is_shown_only_their_own_jobs_and_root_those_asked_for(cluster: Cluster, stage: LiveStage) -> None:
    foreign = JobId(
        int(
            cluster.slurm(
                "sbatch", "--parsable", "-o", "/dev/null", "-p", stage.partition("batch"), "--wrap", "sleep 99"
            )
        )
    )
    own = stage.submit()
    started(stage, own)
    assert foreign not in stage.client.observe().jobs
    assert own in stage.client.observe().jobs


def test_the_answer_to_test_only_is_a_sentence(stage: LiveStage, store: Path) -> None:
    script = store / "fine.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH -p {stage.partition('batch')}\ntrue\n", encoding="utf-8")
    assert "to start at" in stage.client.check_submit(script)
