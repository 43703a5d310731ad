"""Rows of ``core.endings`` that no other live test shows: something between Slurm and the training dies.

Asserted is what Slurm's accounting, the processes and the training's own records and checkpoints say; who decided is
read from the decision last.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from attack import batch_side, companions, crash_once, kill, kill_stepd, steady, watch_launches, watch_until
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import PYTHON, LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(400)

NOW = {"delay_s": 0}


def finishes(run: LiveRun, steps: int, *, watcher: bool = False, timeout_s: float = 180) -> None:
    """The run completes with nothing lost; with ``watcher`` somebody looks after it, as cron would."""
    if watcher:
        watch_until(run, run.decisions, f"{run.run_id} is decided about")
    run.wait_state("Completed", timeout_s=timeout_s)
    assert_whole(run.checkpoints, steps)


def deciders(run: LiveRun) -> list[str]:
    return [str(decision["decided_by"]) for decision in run.decisions()]


def test_a_killed_rank_costs_one_launch(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=2, retry=NOW)
    run.wait_step(10)
    last = next(p for p in run.rank_processes() if p.environ["SLURM_PROCID"] == "1")
    cluster.signal_process(last, signal.SIGKILL)
    watch_launches(run, 4)
    finishes(run, 60)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"], "the allocation was never given back"
    assert run.starts() == ["0.0", "0.1"]
    assert deciders(run) == ["agent"]


@pytest.mark.needs_cgroup
def test_a_killed_stepd_of_the_training(cluster: Cluster, store: Path) -> None:
    """srun would wait for its ranks for ever, and so would a training that talks over the network."""
    run = submit(cluster, store, steady(store, 150), nodes=2, stop={"grace_s": 3}, retry=NOW)
    run.wait_step(10)
    time.sleep(6)  # a companion has seen the ranks
    last = next(p for p in run.rank_processes() if p.environ["SLURM_PROCID"] == "1")
    kill_stepd(last.pid)
    wait_until(lambda: not [p for p in run.rank_processes() if p.node == last.node], 60, "its ranks are gone")
    finishes(run, 150)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    assert run.starts() == ["0.0", "1.0"]
    assert deciders(run) == ["agent", "agent"]


@pytest.mark.parametrize("victim", ["srun", "one"])
def test_killed_companions_come_back_and_the_training_does_not_notice(
    cluster: Cluster, store: Path, victim: str
) -> None:
    command = steady(store, 600, "--on-stop", "note")
    run = submit(cluster, store, command, nodes=2, stop={"grace_s": 2, "warning_s": 5})
    run.wait_step(5)
    before = {p.pid for p in wait_until(lambda: companions(run), 30, "companions run")}
    if victim == "srun":
        kill(run, "companion")
    else:
        cluster.signal_process(next(p for p in companions(run) if p.node != batch_host(run)), signal.SIGKILL)

    def reported() -> set[int]:
        """Companions that have started to listen and said so."""
        return {int(json.loads(path.read_text())["pid"]) for path in run.path.glob("attempts/000/nodes/*.json")}

    def back() -> bool:
        found = companions(run)
        return (
            sorted(p.node for p in found) == sorted({p.node for p in found})
            and len(found) == 2
            and bool({p.pid for p in found} - before)
            and {number_inside(p.pid) for p in found} == reported()
        )

    wait_until(back, 60, "one companion on each node again")
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")
    heard = [row["rank"] for row in run.records("signal") if row["signal"] == "SIGUSR2"]
    assert sorted(heard) == [0, 1], "the stop signal reached the ranks of both nodes, once each"
    assert run.starts() == ["0.0"]


def number_inside(pid: int) -> int:
    """A process's pid as it knows it itself, in its container; 0 once it is gone."""
    with suppress(OSError):
        (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
        return int(line.split()[-1])
    return 0


def batch_host(run: LiveRun) -> str:
    return str(batch_side(run, "agent")[0].node)


def test_when_every_agent_is_killed_the_watcher_decides(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=1)
    run.wait_step(5)
    killed: set[int] = set()

    def end_next() -> bool:
        for process in batch_side(run, "agent"):
            if process.pid not in killed and "is being" not in run.log():
                killed.add(process.pid)
                time.sleep(0.5)  # it has told the batch script that it started
                os.kill(process.pid, signal.SIGKILL)
        job = cluster.job(run.job_id)
        return job is None or job.state == "FAILED"

    wait_until(end_next, 90, "the script gives up")
    assert len(killed) == 4
    assert not run.decisions()
    wait_until(lambda: not run.rank_processes(), 20, "no rank is left")
    finishes(run, 60, watcher=True)
    assert deciders(run) == ["watcher", "agent"]


def test_a_killed_batch_script_is_the_watchers_decision(cluster: Cluster, store: Path) -> None:
    """Slurm ends what is left; nobody inside decides, also no agent that outlives its script for a moment."""
    run = submit(cluster, store, steady(store), nodes=2)
    run.wait_step(10)
    kill(run, "shell")
    assert wait_until(lambda: _ended(cluster, run), 120, "Slurm says that the execution ended") == "FAILED"
    finishes(run, 60, watcher=True)
    run.wait_slurm("COMPLETED")
    assert len(run.ended_states()) == 2
    assert run.starts() == ["0.0", "1.0"]
    assert deciders(run) == ["watcher", "agent"]


def test_a_killed_stepd_of_the_batch_script(cluster: Cluster, store: Path) -> None:
    """Slurm notices late, here a minute after the end of the training, and queues the job again."""
    run = submit(cluster, store, steady(store, 40), nodes=2)
    run.wait_step(10)
    (shell,) = batch_side(run, "shell")
    kill_stepd(shell.pid)
    wait_until(lambda: (j := cluster.job(run.job_id)) and j.restarts == 1, 180, "Slurm queues the job again")
    watch_launches(run, 8)
    finishes(run, 40)
    run.wait_slurm("COMPLETED")
    assert run.starts() == ["0.0"], "it had finished, and the gate keeps the second execution out"
    assert deciders(run) == ["agent"]


def _ended(cluster: Cluster, run: LiveRun) -> str:
    job = cluster.job(run.job_id)
    return job.state if job is not None and job.state not in {"RUNNING", "COMPLETING"} else ""


@pytest.mark.needs_cgroup
def test_out_of_memory_in_a_step_is_the_agents_decision(cluster: Cluster, store: Path) -> None:
    command = trainer(
        store, "--steps", "40", "--fail", "memory", "--fail-launches", "1", "--fail-at", "15", "--fail-rank", "1"
    )
    run = submit(cluster, store, command, nodes=1, ranks=2, resources={"memory": "300M"}, retry=NOW)
    row = run.wait_state("Failed")
    assert row["cause"] == "host_oom"
    run.wait_slurm("FAILED", "OUT_OF_MEMORY")
    assert not run.records("survived"), "the kernel killed it"
    assert run.starts() == ["0.0"], "no retry gives it more memory"
    assert deciders(run) == ["agent"]


@pytest.mark.needs_cgroup
def test_out_of_memory_beside_the_agent_undoes_no_decision(cluster: Cluster, store: Path) -> None:
    """The set-up of the first launch eats the memory of the batch step; the agent lives and starts the next."""
    eat = f"[ -e once ] || {{ : >once; {PYTHON} -c 'x = [bytearray(16 << 20) for _ in range(10000)]'; }}"
    run = submit(
        cluster,
        store,
        steady(store, 20),
        nodes=1,
        resources={"memory": "300M"},
        environment={"setup": [eat]},
        retry=NOW,
    )
    finishes(run, 20)
    wait_until(lambda: _ended(cluster, run), 30, "the job ends")
    job = cluster.job(run.job_id)
    assert job is not None
    assert (job.state, job.restarts) in {("OUT_OF_MEMORY", 0), ("COMPLETED", 0)}
    run.watch_once()
    time.sleep(3)
    run.watch_once()
    assert run.status()["state"] == "Completed"
    assert cluster.job(run.job_id) == job, "it stays as it is"
    assert run.starts() == ["0.1"]
    assert deciders(run) == ["agent"]


@pytest.mark.native_only
def test_a_slurmd_that_comes_back_in_time_ends_nothing(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 120), nodes=2)
    run.wait_step(5)
    node = next(p.node for p in run.rank_processes() if p.node != batch_host(run))
    cluster.kill_slurmd(node)
    time.sleep(2)
    cluster.start_slurmd(node)
    finishes(run, 120)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"]
    assert run.starts() == ["0.0"]


@pytest.mark.whole_cluster
@pytest.mark.native_only
def test_slurmctld_is_killed_while_a_decision_is_due(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 150, *crash_once(140)), nodes=2, retry={"in_place": 0, "delay_s": 0})
    run.wait_step(100)  # slurmctld has saved by then that the job runs; before, it would start again with a waiting job
    cluster.kill_daemon("slurmctld")
    wait_until(lambda: run.records("fault"), 30, "the training crashes meanwhile")
    time.sleep(5)
    assert not run.decisions(), "without Slurm's word nothing is decided"
    cluster.start_daemon("slurmctld")
    finishes(run, 150)
    assert run.starts() == ["0.0", "1.0"]
    assert deciders(run) == ["agent", "agent"]


@pytest.mark.whole_cluster
@pytest.mark.needs_accounting
@pytest.mark.native_only
def test_without_slurmdbd_a_launch_is_restarted(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 30, *crash_once(15)), nodes=2, retry=NOW)
    run.wait_step(5)
    cluster.kill_daemon("slurmdbd")
    try:
        run.wait_state("Completed", timeout_s=120)
    finally:
        cluster.start_daemon("slurmdbd")
    assert_whole(run.checkpoints, 30)
    assert run.starts() == ["0.0", "0.1"]


def test_what_a_companion_costs(cluster: Cluster, store: Path) -> None:
    """Memory, and what it does to shared storage: in 20 s at most one heartbeat is written."""
    run = submit(cluster, store, steady(store, 600), nodes=2)
    run.wait_step(5)
    found = companions(run)
    assert len(found) == 2
    before = {p.pid: _written(p.pid) for p in found}
    time.sleep(20)
    for process in found:
        peak = next(line for line in _read(process.pid, "status").splitlines() if line.startswith("VmHWM"))
        print(process.node, peak, "writes", _written(process.pid) - before[process.pid])
        assert int(peak.split()[1]) < 30 * 1024
        assert _written(process.pid) - before[process.pid] <= 2
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")


def _read(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _written(pid: int) -> int:
    """Calls of write(2) so far."""
    return int(next(line for line in _read(pid, "io").splitlines() if line.startswith("syscw")).split()[1])
