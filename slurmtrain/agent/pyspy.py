"""Stacks of the ranks of a node with py-spy, where the training's own environment has it and ptrace is allowed.

It disturbs nothing and reads also a rank that is stopped or deaf to signals. Its answer is written as faulthandler
prints stacks: there is one form for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurmtrain.agent.processes import Process, read_environ, start_ticks
from slurmtrain.hosts.children import Ended, gather, start

_NAME = "py-spy"
_MAX_AT_ONCE = 64
_MAX_BYTES = 4 << 20  # of one answer
_MAX_THREADS, _MAX_FRAMES = 64, 100
_UNPRINTABLE = re.compile(r"[^ -~\u00a1-\uffff]")


def dump_with_pyspy(ranks: Mapping[int, Process], deadline: float) -> dict[int, list[str]]:
    """Rank → the lines of its stacks; only those that were had before ``deadline`` (``time.monotonic()``)."""
    running: dict[int, subprocess.Popen[bytes]] = {}
    for rank, process in sorted(ranks.items())[:_MAX_AT_ONCE]:
        program = _find_pyspy(process.pid)
        if program is not None and start_ticks(process.pid) == process.start_ticks:
            with contextlib.suppress(OSError):
                running[rank] = start([program, "dump", "--json", "--pid", str(process.pid)])
    found: dict[int, list[str]] = {}
    for rank, ended in gather(running, deadline, _MAX_BYTES):  # the kernel lets go what a killed one held
        lines = list(_lines(_threads(ended), ranks[rank].pid))
        if any(line.startswith("  File") for line in lines):
            found[rank] = lines
    return found


def _find_pyspy(pid: int) -> str | None:
    """Beside the rank's interpreter, or on its PATH; never in a folder that depends on where it runs."""
    environ = read_environ(pid)
    interpreter = _first_argument(pid)
    places = [os.path.dirname(interpreter), *environ.get("PATH", "").split(":")]  # noqa: PTH120 - "" stays ""
    for place in places:
        program = f"{place}/{_NAME}"
        if place.startswith("/") and os.path.isfile(program) and os.access(program, os.X_OK):  # noqa: PTH113
            return program
    return None


def _first_argument(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()[:4096].split(b"\0")[0].decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _threads(ended: Ended) -> list[Any]:
    try:
        threads = json.loads(ended.output) if ended.exit_code == 0 else []
    except (ValueError, RecursionError):
        return []
    return threads if isinstance(threads, list) else []


def _lines(threads: list[Any], pid: int) -> Iterator[str]:
    """The main thread is the current one, and comes first."""
    known = [thread for thread in threads if isinstance(thread, dict)]
    known.sort(key=lambda thread: thread.get("os_thread_id") != pid)
    for thread in known[:_MAX_THREADS]:
        frames = thread.get("frames")
        main = thread.get("os_thread_id") == pid
        number = thread.get("os_thread_id")
        yield f"{'Current thread' if main else 'Thread'} 0x{number if isinstance(number, int) else 0:016x} " + (
            "(most recent call first):"
        )
        for frame in frames[:_MAX_FRAMES] if isinstance(frames, list) else ():
            with contextlib.suppress(KeyError, TypeError, ValueError):
                file, name = _clean(frame["filename"]), _clean(frame["name"]).replace(" ", "")
                yield f'  File "{file}", line {int(frame["line"])} in {name}'


def _clean(value: object) -> str:
    return _UNPRINTABLE.sub("?", str(value))[:500].replace('"', "?")
