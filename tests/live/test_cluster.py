"""The cluster itself is real: what the other live tests rely on, asserted on Slurm and on /proc."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Cluster, Process, wait_until

# Ignores every polite signal and says what it got, in a file: srun's output is cut off once a step is being killed.
STUBBORN = """#!/bin/bash
exec srun --kill-on-bad-exit=0 python3 -c '
import signal, time
log = open("got", "a", buffering=1)
for name in ("SIGTERM", "SIGCONT", "SIGUSR2"):
    signal.signal(getattr(signal, name), lambda number, frame: log.write(signal.Signals(number).name + "\\n"))
print("ready", file=log)
while True:
    time.sleep(0.1)
'
"""
SLEEP = "#!/bin/bash\nsrun sleep 300\n"


def _ready(store: Path) -> bool:
    return (store / "got").exists() and "ready" in (store / "got").read_text(encoding="ascii")


@pytest.mark.docker_too
def test_a_job_of_the_researcher_runs_on_two_nodes_with_gpus(cluster: Cluster, store: Path) -> None:
    script = "#!/bin/bash\nsrun -l bash -c 'echo $(id -un) $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES' >out\n"
    job_id = cluster.sbatch("-N2", "--ntasks-per-node=2", "--gpus-per-node=h100:2", script=script, cwd=store)
    cluster.wait_state(job_id, "COMPLETED")
    rows = sorted((store / "out").read_text(encoding="utf-8").splitlines())
    nodes = {row.split()[2] for row in rows}
    assert [row.split()[0] for row in rows] == ["0:", "1:", "2:", "3:"]
    assert len(nodes) == 2
    assert nodes <= set(cluster.nodes)
    assert {row.split()[1] for row in rows} == {cluster.user}
    assert {row.split()[3] for row in rows} == {"0,1"}
    if cluster.has_accounting:
        wait_until(lambda: cluster.states_of(job_id) == ["COMPLETED"], 15, "the row in accounting")


@pytest.mark.docker_too
def test_the_researcher_has_no_rights(cluster: Cluster) -> None:
    node = cluster.nodes[0]
    attempts = [
        ("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=x"),
        ("scontrol", "reconfigure"),
        ("scontrol", "update", f"PartitionName={cluster.partition()}", "State=DOWN"),
        ("sudo", "-n", "true"),
        ("cat", "/etc/shadow"),
    ]
    if cluster.has_accounting:
        attempts.append(("sacctmgr", "-i", "add", "account", "mine"))
    for argv in attempts:
        try:
            code = cluster.as_user(*argv).returncode
        except FileNotFoundError:
            code = 127
        assert code != 0, argv
    assert cluster.node_state(node) == "idle"
    assert cluster.as_user("id", "-un").stdout.strip() == cluster.user


@pytest.mark.needs_cgroup
def test_a_stubborn_task_is_asked_once_and_killed_after_kill_wait(cluster: Cluster, store: Path) -> None:
    job_id = cluster.sbatch(script=STUBBORN, cwd=store)
    wait_until(lambda: _ready(store), 15, "the task is ready")
    started = time.monotonic()
    cluster.slurm("scancel", str(job_id))
    wait_until(lambda: not cluster.processes(job_id), 30, "the processes are gone", step_s=0.05)
    took = time.monotonic() - started
    kill_wait = float(cluster.timer_values["kill_wait"])
    assert kill_wait - 1 <= took <= kill_wait + 8
    assert "SIGTERM" in (store / "got").read_text(encoding="ascii")


@pytest.mark.needs_cgroup
def test_signals_do_not_reach_grandchildren(cluster: Cluster, store: Path) -> None:
    wrapped = STUBBORN.replace("exec srun --kill-on-bad-exit=0 python3 -c '", "cat >task.py <<'EOF'").replace(
        "    time.sleep(0.1)\n'\n", "    time.sleep(0.1)\nEOF\nsrun bash -c 'python3 task.py; true'\n"
    )
    job_id = cluster.sbatch(script=wrapped, cwd=store)
    wait_until(lambda: _ready(store), 15, "the task is ready")
    cluster.slurm("scancel", "-s", "USR2", f"{job_id}.0")
    time.sleep(1.5)
    assert "SIGUSR2" not in (store / "got").read_text(encoding="ascii")


@pytest.mark.needs_cgroup
def test_an_out_of_memory_kill_is_real(cluster: Cluster, store: Path) -> None:
    script = '#!/bin/bash\nsrun python3 -c "x = bytearray(400 << 20); print(len(x))"\n'
    job_id = cluster.sbatch("--mem=100", "-o", "log", script=script, cwd=store)
    cluster.wait_gone(job_id)
    assert "oom" in (store / "log").read_text(encoding="utf-8").lower()
    if cluster.has_accounting:
        wait_until(
            lambda: "OUT_OF_MEMORY" in [row["State"] for row in cluster.sacct(job_id, steps=True)],
            15,
            "OUT_OF_MEMORY row",
        )


def test_preemption_without_grace_requeues_at_once(cluster: Cluster, store: Path) -> None:
    node = cluster.nodes[0]
    job_id = cluster.sbatch("-w", node, "--exclusive", "--requeue", script=SLEEP, cwd=store)
    cluster.wait_state(job_id, "RUNNING")
    urgent = cluster.sbatch(
        "-p", cluster.partition("urgent"), "-w", node, "--exclusive", script="#!/bin/bash\nsleep 2\n", cwd=store
    )
    cluster.wait_state(urgent, "RUNNING", "COMPLETED", timeout_s=30)
    row = cluster.job(job_id)
    assert row is not None
    assert row.restarts == 1
    if cluster.has_accounting:
        wait_until(lambda: "PREEMPTED" in cluster.states_of(job_id), 15, "a PREEMPTED row")
    cluster.wait_state(job_id, "RUNNING", timeout_s=60)


def test_preemption_with_grace_warns_the_steps_first(cluster: Cluster, store: Path) -> None:
    node = cluster.nodes[0]
    job_id = cluster.sbatch(
        "-p", cluster.partition("graced"), "-w", node, "--exclusive", "--requeue", script=STUBBORN, cwd=store
    )
    wait_until(lambda: _ready(store), 15, "the task is ready")
    urgent = cluster.sbatch(
        "-p", cluster.partition("urgent"), "-w", node, "--exclusive", script="#!/bin/bash\nsleep 1\n", cwd=store
    )
    wait_until(lambda: "SIGTERM" in (store / "got").read_text(encoding="ascii"), 20, "the warning")
    warned = cluster.job(job_id)
    assert warned is not None
    assert warned.state == "RUNNING"
    assert cluster.show_job(job_id)["PreemptTime"] not in ("None", "Unknown")
    cluster.wait_state(urgent, "RUNNING", "COMPLETED", timeout_s=75)
    after = cluster.job(job_id)
    assert after is not None
    assert after.restarts == 1


@pytest.mark.nodes(2)
def test_a_node_that_loses_power_fails_its_job_which_runs_elsewhere(cluster: Cluster, store: Path) -> None:
    node, other = cluster.nodes[:2]
    job_id = cluster.sbatch("--requeue", "-x", ",".join(cluster.nodes[1:]), script=SLEEP, cwd=store)
    cluster.wait_state(job_id, "RUNNING")
    wait_until(lambda: cluster.processes(job_id, node), 10, "processes on the node")
    cluster.kill_node(node)
    assert cluster.processes(job_id, node) == []
    wait_until(lambda: cluster.node_state(node).startswith("down"), 60, "the node is down")
    cluster.slurm("scontrol", "update", f"JobId={job_id}", "ExcNodeList=")
    row = cluster.wait_state(job_id, "RUNNING", timeout_s=60)
    assert row.restarts == 1
    assert node not in row.nodes
    assert other in cluster.nodes
    if cluster.has_accounting:
        wait_until(lambda: "NODE_FAIL" in cluster.states_of(job_id), 15, "a NODE_FAIL row")


def test_a_requeue_waits_for_cred_expire_unless_released(cluster: Cluster, store: Path) -> None:
    delay = float(cluster.timer_values["cred_expire"])
    job_id = cluster.sbatch(script="#!/bin/bash\nexec sleep 300\n", cwd=store)
    cluster.wait_state(job_id, "RUNNING")
    asked = time.monotonic()
    assert cluster.as_user("scontrol", "requeue", str(job_id)).returncode == 0
    wait_until(
        lambda: (row := cluster.job(job_id)) and row.restarts == 1 and row.state == "RUNNING", 60, "the second run"
    )
    assert delay <= time.monotonic() - asked <= delay + 15


@pytest.mark.default_timers
def test_slurms_own_timers_are_in_force(cluster: Cluster) -> None:
    text = cluster.slurm("scontrol", "show", "config")
    found = {
        line.partition("=")[0].strip(): line.partition("=")[2].strip() for line in text.splitlines() if "=" in line
    }
    assert found["KillWait"] == "30 sec"
    assert found["SlurmdTimeout"] == "300 sec"
    assert found["MinJobAge"] == "300 sec"
    assert "cred_expire=120" in found["AuthInfo"]


@pytest.mark.whole_cluster
@pytest.mark.native_only
def test_a_controller_that_hangs_and_one_that_died_come_back(cluster: Cluster, store: Path) -> None:
    job_id = cluster.sbatch(script=SLEEP, cwd=store)
    cluster.wait_state(job_id, "RUNNING")
    cluster.stop_daemon("slurmctld")
    assert cluster.as_user("squeue", timeout_s=60).returncode != 0
    cluster.cont_daemon("slurmctld")
    assert cluster.wait_state(job_id, "RUNNING").state == "RUNNING"
    cluster.kill_daemon("slurmctld")
    assert cluster.as_user("squeue", timeout_s=60).returncode != 0
    cluster.start_daemon("slurmctld")
    wait_until(lambda: "UP" in cluster.slurm("scontrol", "ping", check=False), 20, "slurmctld answers")
    assert cluster.processes(job_id)
    assert cluster.wait_state(job_id, "RUNNING").restarts == 0


@pytest.mark.whole_cluster
@pytest.mark.needs_accounting
def test_jobs_run_while_the_database_daemon_is_away(cluster: Cluster, store: Path) -> None:
    cluster.kill_daemon("slurmdbd")
    job_id = cluster.sbatch(script="#!/bin/bash\nexit 3\n", cwd=store)
    cluster.wait_state(job_id, "FAILED")
    assert cluster.as_user("sacct", "-j", str(job_id), timeout_s=90).returncode != 0
    cluster.start_daemon("slurmdbd")
    wait_until(lambda: _sacct_has(cluster, job_id, "FAILED"), 60, "the row arrives late")


def _sacct_has(cluster: Cluster, job_id: int, state: str) -> bool:
    done = cluster.as_user("sacct", "-X", "-n", "-P", "-o", "State", "-j", str(job_id), timeout_s=90)
    return done.returncode == 0 and state in done.stdout


def test_sigkill_of_a_rank_is_seen_by_srun(cluster: Cluster, store: Path) -> None:
    script = "#!/bin/bash\nsrun -n2 --kill-on-bad-exit=1 sleep 300\necho rc $? >rc\n"
    job_id = cluster.sbatch("-n2", "-o", "log", script=script, cwd=store)
    ranks = wait_until(lambda: _two_ranks(cluster, job_id), 20, "two ranks")
    cluster.signal_process(ranks[0], signal.SIGKILL)
    cluster.wait_gone(job_id)
    assert (store / "rc").read_text(encoding="ascii").split()[1] in ("137", "143")
    assert "Killed" in (store / "log").read_text(encoding="utf-8")


def _two_ranks(cluster: Cluster, job_id: int) -> list[Process]:
    ranks = [p for p in cluster.processes(job_id) if Path(p.argv[0]).name == "sleep"]
    return ranks if len(ranks) == 2 else []
