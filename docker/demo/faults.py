"""Faults on request. They are real: a process that gets SIGSEGV, an exception that nobody catches, an exit code.

``--fault 60:segv:bad-node`` means: at step 60 the last rank dies of a segmentation fault, and so does every rank that
later comes to step 60 in the same place of the same node. ``once`` faults happen once in the life of a run; files in
``folder`` remember that.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

KINDS = ("segv", "keyerror", "exit")
TIMES = ("once", "always", "bad-node")


@dataclass(frozen=True)
class Fault:
    """What goes wrong, at which step, and when again."""

    step: int
    kind: str
    when: str


def parse_fault(text: str) -> Fault:
    """``STEP:KIND[:WHEN]``; raises ``ValueError``."""
    step, _, rest = text.partition(":")
    kind, _, when = rest.partition(":")
    when = when or "once"
    if not step.isdigit() or kind not in KINDS or when not in TIMES:
        raise ValueError(f"{text!r} is no fault: write STEP:{'|'.join(KINDS)}[:{'|'.join(TIMES)}]")
    return Fault(int(step), kind, when)


class FaultInjector:
    """Asked at every step; does not come back when the fault happens."""

    def __init__(self, fault: Fault | None, folder: Path, rank: int, size: int) -> None:
        self._fault, self._folder = fault, folder
        self._is_last_rank = rank == size - 1
        node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self._place = f"{node} {os.environ.get('SLURM_LOCALID') or 0}"  # one rank of a node

    def at_step(self, step: int) -> None:
        """Let the fault happen if this is its place and time."""
        if self._fault is not None and step == self._fault.step and self._is_due(self._fault):
            _happen(self._fault.kind)

    def _is_due(self, fault: Fault) -> bool:
        if fault.when == "always":
            return self._is_last_rank
        first_time = self._is_last_rank and _claim(self._folder / f"{fault.kind}-{fault.step}", self._place)
        if fault.when == "once":
            return first_time
        return first_time or _read(self._folder / f"{fault.kind}-{fault.step}") == self._place


def _claim(path: Path, text: str) -> bool:
    """Create the file; False if it was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _happen(kind: str) -> None:
    sys.stdout.flush()
    if kind == "segv":
        ctypes.string_at(0)  # reads address 0: a segmentation fault in native code
    if kind == "keyerror":
        config = {"learning_rate": 0.1}
        print(config["learning_rat"])
    if kind == "exit":
        os._exit(7)
