"""Stacks of real processes by the real py-spy, in the form that faulthandler prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.agent.processes import Process, start_ticks
from slurmtrain.agent.pyspy import dump_with_pyspy
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
        found = dump_with_pyspy({3: as_process(child)}, time.time() + 60)
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
        assert dump_with_pyspy({0: as_process(child)}, time.time() + 2) == {}
    finally:
        child.kill()
        child.wait()


def test_without_pyspy_nothing_is_started(tmp_path: Path) -> None:
    child = subprocess.Popen(["/bin/sleep", "60"], env={"PATH": str(tmp_path)}, text=True)
    try:
        assert dump_with_pyspy({0: as_process(child)}, time.time() + 2) == {}
    finally:
        child.kill()
        child.wait()
