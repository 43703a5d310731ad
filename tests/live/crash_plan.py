"""What befalls agents, gates, batch shells and watchers in the live crash test: by a seed, at their Slurm commands
(``programs/unreliable.sh``), and at random moments from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster import Cluster
from outside import Process, read_process

COMMANDS = ("squeue", "scontrol", "sbatch", "scancel", "sacct", "sinfo")
SOME_CALLS = 60
KINDS = ("kill-before", "kill-after", "stop-after", "slow", "lose")
STOPS_S = (0.5, 2.0, 7.0, 15.0)


class Plans:
    """Wrappers of Slurm's commands, and a folder with a plan for each run and each watcher."""

    def __init__(self, store: Path, program: Path) -> None:
        self._owner = store.stat()
        self.folder = store / "crash"
        self.wrappers = store / "crash-bin"
        for folder in (self.folder, self.wrappers):
            self._mkdir(folder)
        for name in COMMANDS:
            (self.wrappers / name).symlink_to(program)

    def _mkdir(self, folder: Path) -> None:
        folder.mkdir()
        os.chown(folder, self._owner.st_uid, self._owner.st_gid)

    def make(self, name: str, rng: random.Random, first: int, kind: str, often: float) -> Path:
        """A plan: ``kind`` at the ``first`` call of each role (in turn, over the runs), more by chance."""
        folder = self.folder / name
        self._mkdir(folder)
        for role in ("agent", "watcher"):
            for number in range(1, SOME_CALLS):
                what = kind if number == first else rng.choice(KINDS) if rng.random() < often else ""
                if what:
                    seconds = rng.choice(STOPS_S if what == "stop-after" else STOPS_S[:2])
                    (folder / f"{role}-{number}").write_text(f"{what} {seconds}\n")
        return folder

    def environment(self, path: str, plan: Path | None) -> dict[str, str]:
        """For a watcher, or for a submission: what the job inherits."""
        return {"PATH": f"{self.wrappers}:{path}", "CRASH_PLAN": str(plan or "/nonexistent")}

    def switch_off(self) -> None:
        (self.folder / "off").touch()

    def read_struck(self) -> list[list[str]]:
        """When, role, what, number, command: for each call that was struck."""
        lines = [line for path in self.folder.glob("*/struck") for line in path.read_text().splitlines()]
        return sorted(line.split(" ", 4) for line in lines)


def start_watcher(cluster: Cluster, store: Path, env: Mapping[str, str], *words: str) -> subprocess.Popen[bytes]:
    """``slurmtrain watch`` as the researcher, in a process that can be killed."""
    owner = store.stat()
    executable = f"{cluster.facts['venv']}/bin/slurmtrain"
    with (store / "watchers.log").open("ab") as log:
        return subprocess.Popen(
            ["slurmtrain", "watch", *words],
            executable=executable,
            env={**cluster.user_env(), "SLURMTRAIN_STORE": str(store), **env},
            cwd=store,
            user=owner.st_uid,
            group=owner.st_gid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


class Striker:
    """Kills, stops and resumes processes from outside at random moments, in a thread of its own.

    ``find`` gives what may be struck: role → processes.
    """

    def __init__(self, seed: int, find: Callable[[], dict[str, list[Process]]], pause_s: tuple[float, float]) -> None:
        self._rng = random.Random(seed)
        self._find, self._pause_s = find, pause_s
        self._end = threading.Event()
        self._stopped: list[tuple[float, Process]] = []
        self.done: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Striker:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        """All that is stopped goes on."""
        self._end.set()
        self._thread.join()
        self._resume(float("inf"))

    def _run(self) -> None:
        while not self._end.wait(self._rng.uniform(*self._pause_s)):
            self._resume(time.monotonic())
            found = {role: those for role, those in self._find().items() if those}
            role = self._rng.choice(("agent", "agent", "agent", "watcher", "shell"))
            if role in found:
                self._strike(role, self._rng.choice(found[role]))

    def _strike(self, role: str, victim: Process) -> None:
        kill = self._rng.random() < 0.6 and not (role == "shell" and self._rng.random() < 0.7)
        if not _send(victim, signal.SIGKILL if kill else signal.SIGSTOP):
            return
        self.done[f"{role} {'killed' if kill else 'stopped'}"] += 1
        if not kill:
            self._stopped.append((time.monotonic() + self._rng.choice(STOPS_S), victim))

    def _resume(self, now: float) -> None:
        for due in [pair for pair in self._stopped if pair[0] <= now]:
            self._stopped.remove(due)
            _send(due[1], signal.SIGCONT)


def _send(victim: Process, number: signal.Signals) -> bool:
    """Not to another process that has the pid now."""
    if read_process(Path(f"/proc/{victim.pid}")) != victim:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, number)
        return True
    return False
