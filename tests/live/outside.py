"""Looking at processes and running commands from outside, for the live tests."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Process:
    """A process of a job, seen from the host."""

    pid: int
    argv: list[str]
    environ: dict[str, str]

    @property
    def node(self) -> str:
        return self.environ.get("SLURMD_NODENAME", "")

    @property
    def in_step(self) -> bool:
        """A task of a numbered step, not of the batch script: Slurm 26.05 gives that one the number -5."""
        return self.environ.get("SLURM_STEP_ID", "").isdigit()


def wait_until(condition: Callable[[], T], timeout_s: float, what: str, step_s: float = 0.2) -> T:
    """Poll until the condition is true and return its value; fails with `what` after the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last value: {value!r})")
        time.sleep(step_s)


def run(
    argv: list[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    stdin: str | None = None,
    uid: int | None = None,
    gid: int | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=None if env is None else dict(env),
        cwd=cwd,
        input=stdin or "",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        user=uid,
        group=gid,
        extra_groups=None if uid is None else [],
    )


def cut(line: str, widths: Sequence[int]) -> list[str]:
    """Cells of a fixed-width line."""
    cells, at = [], 0
    for width in widths:
        cells.append(line[at : at + width].strip())
        at += width
    return cells


def read_process(entry: Path) -> Process | None:
    try:
        environ = (entry / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        argv = (entry / "cmdline").read_bytes().decode("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return None
    pairs = (item.partition("=") for item in environ if "=" in item)
    return Process(int(entry.name), argv, {key: value for key, _, value in pairs})
