"""A check in a process of its own, with bounds on time and memory.

A damaged pickle may ask for any amount of memory, and a file system that hangs holds whoever reads from it: neither
may take the agent along.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from slurmtrain.checkpoints.check import CHEAP_S, check
from slurmtrain.checkpoints.metered import MEMORY_BYTES
from slurmtrain.checkpoints.model import Health, Verdict

_ROOT = Path(__file__).parents[2]  # the source tree, site-packages, or the agent's archive
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from slurmtrain.checkpoints.apart import main; main()"


def check_apart(
    path: Path,
    *,
    deep: bool = False,
    marker: str | None = None,
    parts: frozenset[str] = frozenset(),
    own: Path | None = None,
    limit_s: float = 3 * CHEAP_S,
) -> Verdict:
    """As ``check.check``; ``UNREADABLE`` where the check does not end within ``limit_s``. Never raises."""
    order = {"path": os.fspath(path), "deep": deep, "marker": marker, "parts": sorted(parts)}
    order["own"] = os.fspath(own) if own is not None else None
    try:
        child = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD, str(_ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as exc:
        return Verdict(Health.UNREADABLE, "", f"{path.name} cannot be checked: {exc.strerror or exc}")
    try:
        answer, _ = child.communicate(json.dumps(order).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)  # not waited for: what hangs in the kernel does not die
        return Verdict(Health.UNREADABLE, "", f"{path.name} could not be read within {limit_s:.0f} s")
    return _read(answer, path, child.returncode)


def _read(answer: bytes, path: Path, code: int) -> Verdict:
    """A check that died says nothing about it: a full node, a job that ends, a Python that does not start."""
    try:
        found = json.loads(answer)
        return Verdict(Health(found["health"]), found["format"], found["detail"], found["step"], found["deep"])
    except (ValueError, KeyError, TypeError):
        return Verdict(
            Health.UNREADABLE, "", f"{path.name} cannot be checked: the check of it ended with exit code {code}"
        )


def main() -> None:
    """The child: one order on standard input, one verdict on standard output."""
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    order = json.load(sys.stdin)
    own = Path(order["own"]) if order["own"] else None
    answer = os.fdopen(os.dup(1), "w")  # what a format of the run's own prints, or starts, is no verdict
    os.dup2(2, 1)
    found = check(
        Path(order["path"]), deep=order["deep"], marker=order["marker"], parts=frozenset(order["parts"]), own=own
    )
    detail = found.detail.encode("utf-8", "replace").decode()
    shown = {
        "health": found.health.value,
        "format": found.format,
        "detail": detail,
        "step": found.step,
        "deep": found.deep,
    }
    with answer:
        json.dump(shown, answer)


def _limit(kind: int, most: int) -> None:
    """At most so much; a hard limit that is lower (``ulimit -v``, Slurm's VSizeFactor) stays as it is."""
    hard = resource.getrlimit(kind)[1]
    lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (lowest, lowest))
