"""What the batch host measures beside the log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.agent import measure


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_kills_of_the_job_under_cgroup_v2(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("0::/system.slice/slurmstepd.scope/job_38/step_batch/user/task_0\n")
    job = tmp_path / "fs/system.slice/slurmstepd.scope/job_38"
    write(job / "memory.events", "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n")
    write(job / "step_batch/memory.events", "oom_kill 1\n")
    assert measure.count_oom_kills(own, tmp_path / "fs") == 2


def test_kills_of_the_job_under_cgroup_v1(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("5:cpuset:/slurm/uid_7/job_38/step_batch\n4:memory:/slurm/uid_7/job_38/step_batch\n")
    job = tmp_path / "fs/memory/slurm/uid_7/job_38"
    write(job / "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    write(job / "step_0/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert measure.count_oom_kills(own, tmp_path / "fs") == 4


@pytest.mark.parametrize("text", ["", "0::/user.slice\n", "garbage\n", "0::/job_x/step\n", "0::/a/job_38/step_0\n"])
def test_no_cgroup_of_a_job_tells_nothing(text: str, tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text(text)
    assert measure.count_oom_kills(own, tmp_path / "fs") is None
    assert measure.count_oom_kills(tmp_path / "nowhere") is None


@pytest.mark.parametrize("given", ["", "MIG-1,MIG-2", "0-3", "0,1;rm"])
def test_gpus_that_cannot_be_counted(given: str) -> None:
    assert measure.count_gpus({"SLURM_JOB_GPUS": given}) == (None, None)


def test_the_age_of_the_heartbeat(tmp_path: Path) -> None:
    assert measure.heartbeat_age(None) is None
    assert measure.heartbeat_age(tmp_path) is None
    (tmp_path / "heartbeat").touch()
    os.utime(tmp_path / "heartbeat", (0, 0))
    assert (measure.heartbeat_age(tmp_path) or 0) > 1e9
