"""What the walk-through is made of: telling, running commands in the open, following a log, checking promises."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

COLOUR = sys.stdout.isatty() and "NO_COLOR" not in os.environ
WIDTH = 100
_SHOWN = re.compile(r"^(?:\d+: )?(?:slurmtrain: |training: |step \d)|^srun: error: .*(?:Seg|Exited)|KeyError: ")


class DemoError(Exception):
    """The demo cannot go on; a sentence."""


def tell(text: str) -> None:
    """A paragraph for the reader."""
    print(
        "\n" + textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False, break_long_words=False), flush=True
    )


def title(text: str) -> None:
    print("\n" + paint("1", f"{text}\n{'=' * len(text)}"), flush=True)


def paint(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOUR else text


def show(*argv: str, timeout_s: float = 120) -> int:
    """Run a command as a person would: the command and its output are on the screen. Its exit code."""
    print("\n" + paint("36", "$ " + shlex.join(argv)), flush=True)
    try:
        return subprocess.run(argv, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL).returncode
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise DemoError(f"{argv[0]} did not work: {exc}") from exc


def ask(*argv: str, timeout_s: float = 60) -> str:
    """Output of a command that need not be seen; empty when it failed."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    return done.stdout if done.returncode == 0 else ""


def wait_until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise DemoError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.3)


class Follower:
    """Shows the interesting lines of a run's log while it grows."""

    def __init__(self, log_folder: Path) -> None:
        self._folder, self._end = log_folder, threading.Event()
        self._offset = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=5)

    def _follow(self) -> None:
        while not self._end.wait(0.3):
            self._print_new()
        self._print_new()

    def _print_new(self) -> None:
        for path in sorted(self._folder.glob("train-*.log")):
            with path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                if _SHOWN.search(line):
                    print(paint("2", "  | ") + line[: WIDTH + 40], flush=True)


class Promises:
    """What the demo promises, checked by what Slurm and the files say; a broken one makes the exit code 1."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def check(self, promise: str, kept: bool, found: object = "") -> None:
        mark = paint("32", "kept:  ") if kept else paint("31;1", "BROKEN:")
        detail = "" if kept or not str(found) else f" (found: {found})"
        print(f"  {mark} {promise}{detail}", flush=True)
        if not kept:
            self.broken.append(promise)


def job_rows(job_id: str) -> list[dict[str, str]]:
    """Slurm's accounting: a row for each time the job ran. Empty on a cluster without accounting."""
    names = ["JobID", "State", "ExitCode", "NodeList"]
    text = ask("sacct", "-X", "-D", "-n", "-P", "-j", job_id, "-o", ",".join(names))
    return [dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines()]


def hosts_of(nodelist: str) -> list[str]:
    return ask("scontrol", "show", "hostnames", nodelist).split() if nodelist else []


def has_accounting() -> bool:
    config = ask("scontrol", "show", "config")
    return re.search(r"^AccountingStorageType\s*=\s*accounting_storage/slurmdbd", config, re.MULTILINE) is not None


def submit(job_file: str) -> tuple[str, Path, str]:
    """Submit in the open; run id, run directory and job id."""
    print("\n" + paint("36", f"$ slurmtrain submit {job_file}"), flush=True)
    done = subprocess.run(
        ["slurmtrain", "submit", "--json", job_file], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise DemoError(f"slurmtrain submit {job_file} failed: {done.stderr.strip() or done.stdout.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    print(f"run {answer['run_id']}, job {answer['job_id']}", flush=True)
    return str(answer["run_id"]), Path(answer["run_dir"]), str(answer["job_id"])
