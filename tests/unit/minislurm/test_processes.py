"""A recorded process is stopped only while it is that very process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from minislurm import members, procs
from minislurm.settings import Settings

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP)
    yield child
    child.kill()
    child.wait()


def test_a_live_process_is_known_and_a_dead_one_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    identity = procs.identify(sleeper.pid)
    assert identity is not None
    assert identity.alive
    sleeper.kill()
    sleeper.wait()
    assert not identity.alive
    assert procs.identify(sleeper.pid) is None


def test_a_zombie_counts_as_dead(sleeper: subprocess.Popen[bytes]) -> None:
    identity = procs.identify(sleeper.pid)
    assert identity is not None
    sleeper.kill()
    deadline = time.monotonic() + 5
    while identity.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Path(f"/proc/{sleeper.pid}").exists()  # nobody has waited for it yet
    assert not identity.alive


@pytest.mark.parametrize("change", ["start", "boot"])
def test_a_recycled_pid_is_never_killed(sleeper: subprocess.Popen[bytes], tmp_path: Path, change: str) -> None:
    identity = procs.identify(sleeper.pid)
    assert identity is not None
    record = {"pid": identity.pid, "start": identity.start, "boot": identity.boot}
    record[change] = identity.start - 1 if change == "start" else "another-boot"
    procs.record_path(tmp_path, "slurmctld").write_text(json.dumps(record), encoding="ascii")
    stale = procs.load_record(tmp_path, "slurmctld")
    assert stale is not None
    assert not procs.is_running(tmp_path, "slurmctld")
    procs.stop([stale], 0.1)
    procs.kill_now([stale])
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "start": 1, "boot": ""}', '{"pid": 1}'])
def test_a_damaged_record_is_no_process(tmp_path: Path, text: str) -> None:
    procs.record_path(tmp_path, "munged").write_text(text, encoding="ascii")
    assert procs.load_record(tmp_path, "munged") is None


def test_stop_ends_a_stopped_process_politely_and_a_stubborn_one_by_force() -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(60)"
    )
    children = [subprocess.Popen(SLEEP), subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)]
    assert children[1].stdout is not None
    children[1].stdout.readline()
    os.kill(children[0].pid, signal.SIGSTOP)
    found = [identity for child in children if (identity := procs.identify(child.pid))]
    killed = procs.stop(found, 1.0)
    codes = [child.wait(5) for child in children]
    assert codes == [-signal.SIGTERM, -signal.SIGKILL]
    assert [identity.pid for identity in killed] == [children[1].pid]
    children[1].stdout.close()


def test_processes_of_a_job_are_found_by_environment_and_by_descent(tmp_path: Path) -> None:
    """The child has emptied its environment, as a job may; its parent has the job's."""
    settings = Settings(name="unit", directory=str(tmp_path))
    env = {
        **os.environ,
        "SLURM_CONF": str(settings.layout.slurm_conf),
        "SLURM_JOB_ID": "7",
        "SLURMD_NODENAME": "unit2",
    }
    script = "env -i sleep 60 & echo $!; wait"
    parent = subprocess.Popen(["/bin/sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True)
    stranger = subprocess.Popen(SLEEP, env={**env, "SLURM_CONF": "/etc/slurm/slurm.conf"})
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        found = members.of_cluster(settings)
        assert found[parent.pid] == "unit2"
        assert found[child] == "unit2"
        assert stranger.pid not in found
        assert {i.pid for i in members.of_node(settings, "unit2")} == {parent.pid, child}
        assert members.of_node(settings, "unit1") == []
        os.kill(child, signal.SIGKILL)
    finally:
        for process in (parent, stranger):
            process.kill()
            process.wait()
        if parent.stdout is not None:
            parent.stdout.close()
