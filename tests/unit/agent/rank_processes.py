"""Processes that look like the tasks of a launch, for tests of what finds and signals them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

JOB = str(4_000_000_000 + os.getpid())  # of this worker alone: others may run the same tests beside it
LISTENER = """
import os, signal, sys, time
out = sys.argv[1]
def note(number, frame):
    with open(out, "a") as f: f.write(f"{os.getpid()} {number}\\n")
signal.signal(signal.SIGUSR2, note)
if "fork" in sys.argv and os.fork() == 0: pass
open(out + f".ready.{os.getpid()}", "w").close()
while True: time.sleep(0.05)
"""
DEAF = "import sys, time, os; open(sys.argv[1] + f'.ready.{os.getpid()}', 'w').close(); time.sleep(60)"


class Ranks:
    """Processes that look like tasks of a launch."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "signals"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, argv: list[str], ready: int = 1, **env: str) -> subprocess.Popen[bytes]:
        task = {"SLURM_JOB_ID": JOB, "SLURM_PROCID": "0", "SLURM_STEP_ID": "3", "SLURMTRAIN_LAUNCH_KEY": "0.1"}
        process = subprocess.Popen(argv, env={**os.environ, **task, **env}, start_new_session=True)
        self.started.append(process)
        deadline = time.monotonic() + 20
        before = len(list(self.out.parent.glob("*.ready.*")))
        while len(list(self.out.parent.glob("*.ready.*"))) < before + ready and time.monotonic() < deadline:
            time.sleep(0.02)
        return process

    def python(self, code: str, *words: str) -> list[str]:
        return [sys.executable, "-c", code, str(self.out), *words]

    def heard(self) -> list[int]:
        time.sleep(0.4)
        return [int(line.split()[0]) for line in self.out.read_text().splitlines()] if self.out.exists() else []
