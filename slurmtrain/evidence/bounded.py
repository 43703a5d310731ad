"""Running a program for a collector: bounded in time and in what it may print."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

NOT_FOUND, TIMED_OUT = 127, 124
_LOOK_S = 0.1  # how often it is looked whether one has ended whose output another process holds open
_AFTER_KILL_S = 1.0  # one that waits in the kernel for ever is left behind


@dataclass(frozen=True, slots=True)
class Output:
    """How a program ended: 127 where there is none of that name, 124 where it was ended for its time limit.

    ``truncated``: it printed more than was wanted, was ended there, and ``stdout`` holds the beginning.
    """

    returncode: int
    stdout: str
    stderr: str
    truncated: bool = False

    @property
    def ok(self) -> bool:
        return self.returncode == 0


def run_bounded(
    argv: Sequence[str],
    *,
    timeout_s: float,
    max_bytes: int,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Output:
    """Run ``argv`` without input. Never raises for what a node lacks. Output is UTF-8, what is none is replaced."""
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=dict(env) if env is not None else None, cwd=cwd,
        )  # fmt: skip
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        return Output(NOT_FOUND, "", f"{argv[0]}: {reason}")
    out, err, late, full = _read(process, time.monotonic() + timeout_s, max_bytes)
    if late or full:
        _kill(process)
    try:
        code = process.wait(_AFTER_KILL_S if late or full else max(1.0, timeout_s))
    except subprocess.TimeoutExpired:
        _kill(process)
        late, code = True, TIMED_OUT
    return Output(TIMED_OUT if late else code, _text(out), _text(err), full)


def _read(process: subprocess.Popen[bytes], deadline: float, limit: int) -> tuple[bytes, bytes, bool, bool]:
    """What it printed, whether time ran out, and whether it printed too much."""
    kept: dict[str, bytearray] = {"out": bytearray(), "err": bytearray()}
    streams: dict[str, IO[bytes] | None] = {"out": process.stdout, "err": process.stderr}
    with selectors.DefaultSelector() as selector:
        for name, stream in streams.items():
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, name)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return bytes(kept["out"]), bytes(kept["err"]), True, False
            ended = process.poll() is not None
            ready = selector.select(0 if ended else min(left, _LOOK_S))
            if ended and not ready:  # what it left running holds its output open
                break
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                kept[key.data] += data
                if len(kept[key.data]) > limit:
                    return bytes(kept["out"][:limit]), bytes(kept["err"][:limit]), False, True
    return bytes(kept["out"]), bytes(kept["err"]), False, False


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, signal.SIGKILL)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
