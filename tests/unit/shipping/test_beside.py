"""The shipper beside a training: what becomes of it when the agent dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from make_run import make_run

REPO = Path(__file__).resolve().parents[3]
PARENT = """
import os, sys, time
from pathlib import Path
from slurmtrain.ops.shipping.start import start_beside_training
process = start_beside_training([sys.executable, "-m", "slurmtrain"], Path(sys.argv[1]), {**os.environ})
print(process.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: object, what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_it_ships_and_ends_with_the_agent(tmp_path: Path) -> None:
    run = make_run(tmp_path / "store", f"file://{tmp_path}/remote", every_s=5)
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(run.path)], stdout=subprocess.PIPE, text=True, env=env)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        wait_until((tmp_path / "remote" / run.run_id / "manifest.json").exists, "the first pass is made")
        run.log_file("1").write_text("line 1\nthe last line\n")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        wait_until(lambda: not is_alive(child), "the shipper ends")
    finally:
        parent.kill()
        if is_alive(child):
            os.kill(child, signal.SIGKILL)
    assert (tmp_path / "remote" / run.run_id / "logs/train-1.log").read_text() == "line 1\nthe last line\n"
    assert '"until": 0.0' in (run.ship / "lease.json").read_text()
