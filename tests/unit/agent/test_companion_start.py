"""A companion that is asked to stop its ranks while it still starts, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_support import Scene
from rank_processes import JOB, LISTENER, Ranks

from slurmtrain.agent.companions import CompanionStep

SRUN = """#!/bin/bash
while [ $# -gt 0 ] && [ "$1" != /bin/sh ]; do shift; done
exec "$@"
"""
SAYS_WHAT_IT_IGNORES = """
import time
with open("/proc/self/status") as status: print([x for x in status if x.startswith("SigIgn")][0], flush=True)
time.sleep(60)
"""
COMPANION = """
import os, sys
from pathlib import Path
from slurmtrain.agent.companion import run_companion
run_companion(Path(sys.argv[1]), 0, os.environ)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_does_not_die_of_a_request_before_it_can_hear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scene = Scene(tmp_path)
    scene.claim()
    scene.run.agent.write_text(SAYS_WHAT_IT_IGNORES)
    step = CompanionStep(scene.job, scene.attempt, scene.slurm, {**os.environ, "SLURM_JOB_ID": JOB})
    step.ensure_running()
    try:
        log = scene.attempt.path / "companion.log"
        wait_for(lambda: "SigIgn" in log.read_text())
        ignored = int(log.read_text().split()[1], 16)
        assert ignored & 1 << (signal.SIGUSR2 - 1)
        assert not ignored & 1 << (signal.SIGUSR1 - 1)  # it ends at once when it is dismissed
        step.ask_to_stop()
        time.sleep(0.2)
        assert step.alive
    finally:
        step.end()


def test_a_launch_does_not_hear_what_a_person_sent_to_the_one_before(tmp_path: Path, ranks: Ranks) -> None:
    """`scancel -s USR2`, on a node without the agent: the ranks heard it themselves and left."""
    scene = Scene(tmp_path)
    scene.claim()
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURMD_NODENAME": "n1"}
    companion = subprocess.Popen([sys.executable, "-c", COMPANION, str(scene.run.path)], env=env, stdin=subprocess.PIPE)
    try:
        wait_for((scene.attempt.nodes / "n1.json").exists)
        companion.send_signal(signal.SIGUSR2)
        time.sleep(1.5)
        task = ranks.start(ranks.python(LISTENER))
        time.sleep(1.5)
        assert ranks.heard() == []
        scene.attempt.stop_file.write_text("drain\n")
        companion.send_signal(signal.SIGUSR2)
        wait_for(ranks.out.exists)
        assert ranks.heard() == [task.pid]
    finally:
        companion.kill()
        companion.wait()


def test_it_learns_from_the_stop_file_what_it_has_missed(tmp_path: Path, ranks: Ranks) -> None:
    scene = Scene(tmp_path)
    scene.claim()
    scene.attempt.stop_file.write_text("time_limit\n")
    task = ranks.start(ranks.python(LISTENER, "fork"), ready=2)
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURMD_NODENAME": "n1"}
    argv = [sys.executable, "-c", COMPANION, str(scene.run.path)]
    companion = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE)
    try:
        wait_for(ranks.out.exists)
        time.sleep(2.5)  # it looks for more that listen: the child, which inherited the handler, is none of them
        assert ranks.heard() == [task.pid]
    finally:
        companion.kill()
        companion.wait()
