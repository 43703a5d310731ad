"""SIGTERM to a whole job and to its ranks alone: real processes, the companion and a rank with the helper."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_support import Scene
from rank_processes import JOB, Ranks

from slurmtrain.agent.beats import beats_folder

COMPANION = """
import os, sys, time
from pathlib import Path
from slurmtrain.agent import companion
def find(*rest):
    time.sleep(LOOK_S)
    return real(*rest)
companion.find_launch_processes, real = find, companion.find_launch_processes
companion.run_companion(Path(sys.argv[1]), 0, os.environ)
"""
RANK = """
import sys, time
from slurmtrain.training import listen, should_stop
listen()
open(sys.argv[1] + ".ready.rank", "w").close()
until = time.monotonic() + 60
while not should_stop() and time.monotonic() < until: time.sleep(0.02)
"""
SAVES = """
import signal, sys, time
from slurmtrain.training import listen, should_stop
listen()
open(sys.argv[1] + ".ready.rank", "w").close()
while not should_stop(): time.sleep(0.02)
time.sleep(4)
"""


Pair = tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]


@contextmanager
def started(tmp_path: Path, ranks: Ranks, rank_code: str, companion_code: str) -> Iterator[Pair]:
    """A rank that listens and its node's companion, which has reported."""
    scene = Scene(tmp_path)
    scene.claim()
    folder = beats_folder(JOB, "0.1")
    rank = ranks.start(
        ranks.python(rank_code), SLURMTRAIN_RUN_ID="r", SLURMTRAIN_BEATS=str(folder), SLURMD_NODENAME="n1"
    )
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURMD_NODENAME": "n1"}
    argv = [sys.executable, "-c", companion_code, str(scene.run.path)]
    companion = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE)
    try:
        reported, deadline = scene.attempt.nodes / "n1.json", time.monotonic() + 60
        while not reported.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield rank, companion
        if companion.poll() is not None:
            assert not folder.exists(), "nothing is left in the memory of the node"
    finally:
        companion.kill()
        companion.wait()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(("whole", "look_s"), [(True, 0), (True, 1.5), (False, 0)])
def test_a_rank_outlives_the_term_that_its_companion_gets_too(
    tmp_path: Path, ranks: Ranks, whole: bool, look_s: float
) -> None:
    """A look at all processes of a node may take as long as the ranks wait for the mark."""
    with started(tmp_path, ranks, RANK, COMPANION.replace("LOOK_S", str(look_s))) as (rank, companion):
        rank.send_signal(signal.SIGTERM)
        if whole:
            companion.send_signal(signal.SIGTERM)
        assert rank.wait(60) == (0 if whole else -signal.SIGTERM)
        if whole:
            assert companion.wait(60) == 0


def test_a_companion_stays_as_long_as_a_rank_uses_its_grace_time(tmp_path: Path, ranks: Ranks) -> None:
    """Slurm sends TERM again when it is over, and kills ``KillWait`` later: that time is the ranks', too."""
    code = COMPANION.replace("LOOK_S", "0").replace("companion.run_", "companion._LINGER_S = 0.5\ncompanion.run_")
    with started(tmp_path, ranks, SAVES, code) as (rank, companion):
        for seconds in (0.0, 2.5):
            time.sleep(seconds)
            companion.send_signal(signal.SIGTERM)
            rank.send_signal(signal.SIGTERM)
        assert rank.wait(60) == 0
        assert companion.wait(60) == 0
