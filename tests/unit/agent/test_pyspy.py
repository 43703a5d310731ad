"""Stacks of real processes by the real py-spy, in the form that faulthandler prints."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.agent.hang import wait_for_stacks
from slurmtrain.agent.processes import Process, start_ticks
from slurmtrain.agent.pyspy import dump_with_pyspy
from slurmtrain.agent.stacks import dump_stacks
from slurmtrain.core.stacks import Where, parse_stacks

PROGRAM = """
import threading, time
def feed():
    time.sleep(300)
def stand_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    print("stands", flush=True)
    lock.acquire()
threading.Thread(target=feed, daemon=True).start()
stand_in_a_lock()
"""


def rank(folder: Path, path: str) -> subprocess.Popen[str]:
    program = folder / "hang.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PATH": path}
    child = subprocess.Popen([sys.executable, str(program)], env=env, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "stands\n"
    return child


def as_process(child: subprocess.Popen[str]) -> Process:
    return Process(child.pid, os.getpid(), start_ticks(child.pid) or 0, 0, "0.0", "1")


def test_the_main_thread_of_a_rank_is_read(tmp_path: Path) -> None:
    child = rank(tmp_path, str(Path(sys.executable).parent))
    try:
        found = dump_with_pyspy({3: as_process(child)}, time.monotonic() + 60)
    finally:
        child.kill()
        child.wait()
    stacks = parse_stacks((rank, line) for rank, lines in found.items() for line in lines)
    assert list(stacks) == [3]
    assert isinstance(stacks[3], Where)
    assert str(stacks[3].place) == "stand_in_a_lock (hang.py:9)"
    assert any("in feed" in line for line in found[3]), "the other threads, too"


@pytest.mark.parametrize("answer", ["exit 1", "echo '{'", "echo '[3, {}, {\"frames\": 5}]'", "sleep 60"])
def test_a_pyspy_that_does_not_work_tells_nothing(answer: str, tmp_path: Path) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\n{answer}\n")
    fake.chmod(0o755)
    child = subprocess.Popen(["/bin/sleep", "60"], env={"PATH": f"relative::{tmp_path}"}, text=True)
    try:
        assert dump_with_pyspy({0: as_process(child)}, time.monotonic() + 2) == {}
    finally:
        child.kill()
        child.wait()


def test_without_pyspy_nothing_is_started(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], env={"PATH": str(tmp_path)}, text=True)
    try:
        assert dump_with_pyspy({0: as_process(child)}, time.monotonic() + 2) == {}
    finally:
        child.kill()
        child.wait()


FLOOD = "while :; do echo '[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[['; done"


@pytest.mark.parametrize("answer", [FLOOD, "sleep 600 & echo $! > {pid}; wait", "sleep 600 & echo $! > {pid}; exit 0"])
def test_what_floods_or_hangs_is_ended_with_all_that_it_started(answer: str, tmp_path: Path) -> None:
    fake, pid = tmp_path / "py-spy", tmp_path / "pid"
    fake.write_text(f"#!/bin/sh\necho $$ > {pid}\n{answer.replace('{pid}', str(pid))}\n")
    fake.chmod(0o755)
    ranks = [subprocess.Popen(["/bin/sleep", "600"], env={"PATH": str(tmp_path)}) for _ in range(3)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        began = time.monotonic()
        assert dump_with_pyspy({n: as_process(child) for n, child in enumerate(ranks)}, time.monotonic() + 5) == {}
        assert time.monotonic() - began < 30
    finally:
        for child in ranks:
            child.kill()
            child.wait()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, "KiB"
    deadline = time.monotonic() + 20
    while is_alive(int(pid.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(pid.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_clock_that_is_set_back_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NTP, or an administrator, sets the clock of the node back by an hour while the stacks are taken."""
    now, calls = time.time(), []

    def set_back() -> float:
        calls.append(1)
        return now if len(calls) <= 1 else now - 3600

    monkeypatch.setattr(time, "time", set_back)
    began = time.monotonic()
    dump_stacks([], tmp_path, "node-1", now + 0.5)
    assert time.monotonic() - began < 30
    calls.clear()
    wait_for_stacks(Quiet(), now)  # type: ignore[arg-type]
    assert time.monotonic() - began < 60


class Quiet:
    """A launch that goes on and writes nothing."""

    def sizes(self) -> tuple[int, ...]:
        return (5,)

    def poll(self) -> int | None:
        return None
