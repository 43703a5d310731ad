"""What a dead launch leaves on a node: processes, GPU memory, shared memory, ports, tasks without slurmstepd."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmtrain.agent.cgroup import find_step_cgroup
from slurmtrain.agent.companion_events import GONE, LOST, CompanionLog, News
from slurmtrain.agent.launch import find_free_port, rendezvous_port
from slurmtrain.agent.processes import Process, find_launch_processes
from slurmtrain.agent.release import release_node, remove_shared_memory
from slurmtrain.agent.tasks import TaskWatch
from slurmtrain.core.jobid import parse_job_id

JOB = f"98{os.getpid()}"  # tests run side by side
RANK = {"SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "1", "SLURM_PROCID": "0", "SLURMTRAIN_LAUNCH_KEY": "0.3"}


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(argv, env={**os.environ, **(env or {})}, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_processes_are_ended_and_waited_for(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    rank = spawn("sleep", "600", env=RANK)
    wait_for(lambda: find_launch_processes(JOB))
    assert release_node(JOB, time.time(), 20, query=lambda _: "") == []
    assert rank.wait(10) == -signal.SIGKILL


def test_gpu_memory_of_a_process_that_is_gone_is_waited_for() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    answers = iter([f"{gone.pid}\n", f"{gone.pid}\n", ""])
    assert release_node(JOB, time.time(), 20, gpus="0", query=lambda _: next(answers)) == []
    assert next(answers, None) is None, "asked until it was released"


def test_what_is_never_released_is_told() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert release_node(JOB, time.time(), 0, query=lambda _: str(gone.pid)) == [f"GPU memory of process {gone.pid}"]


def test_a_living_process_of_somebody_else_is_not_waited_for() -> None:
    assert release_node(JOB, time.time(), 0, query=lambda _: f"{os.getpid()}\nNo running processes found\n") == []


def test_only_shared_memory_that_nobody_has_is_removed(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    since = time.time() - 1
    names = ["torch_77_1", "nccl-AbC", "torch_open", "nccl-mapped", "my-own-data"]
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 4096)
    holder = spawn("sleep", "600")
    assert holder.pid
    opened = (tmp_path / "torch_open").open("rb")
    with (tmp_path / "nccl-mapped").open("r+b") as stream:
        mapped = mmap.mmap(stream.fileno(), 0)
    try:
        assert sorted(remove_shared_memory(since, tmp_path)) == ["nccl-AbC", "torch_77_1"]
        assert sorted(p.name for p in tmp_path.iterdir()) == ["my-own-data", "nccl-mapped", "torch_open"]
    finally:
        opened.close()
        mapped.close()
    assert sorted(remove_shared_memory(since, tmp_path)) == ["nccl-mapped", "torch_open"]


def test_shared_memory_older_than_the_launch_stays(tmp_path: Path) -> None:
    (tmp_path / "torch_1_1").touch()
    assert remove_shared_memory(time.time() + 10, tmp_path) == []


def test_links_and_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "torch_link").symlink_to(tmp_path / "target")
    (tmp_path / "nccl-dir").mkdir()
    assert remove_shared_memory(0.0, tmp_path) == []


def test_a_port_that_is_taken_is_not_used() -> None:
    first = find_free_port(rendezvous_port(parse_job_id("1234"), 0, 0))
    with socket.socket() as taken:
        taken.bind(("", first))
        other = find_free_port(first)
    assert other != first
    assert 20000 <= other < 32000


def test_ports_of_launches_in_a_row_differ() -> None:
    job_id = parse_job_id("1234")
    assert len({rendezvous_port(job_id, 0, launch) for launch in range(6)}) == 6


class Node:
    """A slurmstepd with one rank below it: real processes."""

    def __init__(
        self,
        folder: Path,
        spawn: Callable[..., subprocess.Popen[bytes]],
        find_cgroup: Callable[[str], Path | None] = lambda _step: None,
    ) -> None:
        stepd = folder / "slurmstepd"
        shutil.copy("/bin/bash", stepd)
        env = " ".join(f"{key}={value}" for key, value in RANK.items())
        self.stepd = spawn(str(stepd), "-c", f"env {env} sleep 600 & wait")
        self.watch = TaskWatch(self.find, 0.0, find_cgroup)
        wait_for(self.find)

    def find(self) -> list[Process]:
        return find_launch_processes(JOB)

    def look(self) -> list[tuple[str, str, int]]:
        return [(event, launch, len(processes)) for event, launch, processes in self.watch.look()]


@pytest.fixture
def node(tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]]) -> Iterator[Node]:
    made = Node(tmp_path, spawn)
    yield made
    for process in made.find():
        os.kill(process.pid, signal.SIGKILL)


def test_a_task_whose_slurmstepd_is_killed_is_lost(node: Node) -> None:
    assert node.look() == []
    assert node.look() == [], "all is well"
    node.stepd.kill()
    node.stepd.wait()
    assert node.look() == [(LOST, "0.3", 1)]
    assert node.look() == [], "told once; without a slurmstepd it is nobody's task any more"


def test_a_launch_that_ended_is_gone(node: Node) -> None:
    assert node.look() == []
    os.kill(node.find()[0].pid, signal.SIGKILL)
    node.stepd.wait()
    assert node.look() == [], "slurmstepd has a moment to end after them"
    assert node.look() == [(GONE, "0.3", 0)]
    assert node.look() == []


def test_a_slurmstepd_that_died_with_its_tasks_left_its_cgroup(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Its tasks die of SIGPIPE when they print; the folder of the step is what tells it from an ordinary end."""
    folder = tmp_path / "step_1"
    node = Node(tmp_path, spawn, lambda step: tmp_path / f"step_{step}")
    folder.mkdir()
    assert node.look() == []
    os.kill(node.find()[0].pid, signal.SIGKILL)
    node.stepd.wait()
    assert [*node.look(), *node.look()] == [(LOST, "0.3", 0)]


CGROUPS = {
    "v1": ("9:name=systemd:/\n6:freezer:/slurm_n1/uid_7/job_60/step_0\n4:memory:/x/job_60/step_0/task_0\n", "freezer"),
    "v2": ("0::/system.slice/slurmstepd.scope/job_60/step_0/user/task_0\n", ""),
}


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1", "/sys/fs/cgroup/freezer/slurm_n1/uid_7/job_60/step_3"),
        ("v2", "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_60/step_3"),
    ],
)
def test_the_cgroup_of_another_step(tmp_path: Path, version: str, expected: str) -> None:
    proc = tmp_path / "self"
    proc.mkdir()
    text, controller = CGROUPS[version]
    mounts = {
        "v1": "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/freezer cgroup rw,relatime,freezer 0 0\n",
        "v2": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    }
    (proc / "cgroup").write_text(text)
    (proc / "mounts").write_text(mounts[version])
    assert controller in text
    assert find_step_cgroup("3", tmp_path) == Path(expected)
    (proc / "cgroup").write_text("0::/user.slice\n")
    assert find_step_cgroup("3", tmp_path) is None


def test_a_process_that_left_its_task_is_no_task(spawn: Callable[..., subprocess.Popen[bytes]]) -> None:
    """A service that a training started and left behind has the launch's environment, and no slurmstepd above it."""
    spawn("sleep", "600", env=RANK)
    wait_for(lambda: find_launch_processes(JOB))
    watch = TaskWatch(lambda: find_launch_processes(JOB), 0.0)
    assert [list(watch.look()) for _ in range(3)] == [[], [], []]


def test_news_of_companions_is_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "companion.log"
    log = CompanionLog(path)
    assert log.read() == News()
    path.write_text("noise\nslurmtrain-companion: lost 0.3 n2\nsrun: error: n7: task 4: Killed\nslurmtrain-comp")
    assert log.read() == News((("lost", "0.3", "n2"),), ("n7",))
    with path.open("a") as stream:
        stream.write("anion: gone 1.0 n3\nslurmtrain-companion: lost x y z\nslurmtrain-companion: lost 1.0 $(x)\n")
    assert log.read() == News((("gone", "1.0", "n3"),))
    assert log.read() == News()
