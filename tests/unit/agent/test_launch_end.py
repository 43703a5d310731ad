"""The exit code of a launch is settled once, where it ends: what follows only reads it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.verdict import read_launch_end

LOST = "srun: error: Node failure on n2\n"
CRASH = "srun: error: n1: task 3: Exited with exit code 7\nsrun: error: n1: tasks 0-2: Terminated\n"


@pytest.mark.parametrize(
    ("log", "code", "primary_done", "own"),
    [("", 0, False, 0), (LOST, 0, False, 1), (LOST, 143, True, 0), (CRASH, 143, False, 7), (CRASH, 143, True, 0)],
)
def test_own_code(tmp_path: Path, log: str, code: int, primary_done: bool, own: int) -> None:
    """srun exits 0 when it lost a node, and with the code of the peers that it killed."""
    path = tmp_path / "log"
    path.write_text("0: step 1\n" + log)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    launch = LaunchProcess(0, process, path, 0, time.time())
    end = read_launch_end(launch, None, code, None, primary_done=primary_done)
    assert end.own_code == own
    assert (end.exit_code == 0) is (own == 0)
