"""Space of file systems, asked in processes of their own: a dead NFS server answers nobody, and its callers hang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

_FULL_BYTES, _FULL_SHARE = 64 << 20, 0.005
_MAX_ANSWER = 4096
NO_ANSWER = "does not answer"


@dataclass(frozen=True, slots=True)
class Volume:
    """Bytes and inodes; ``free`` is what the user may still take."""

    size: int
    free: int
    inodes: int  # 0 where the file system counts none
    inodes_free: int

    @property
    def is_full(self) -> bool:
        few_bytes = self.size > 0 and self.free < min(_FULL_BYTES, self.size * _FULL_SHARE)
        return few_bytes or (self.inodes > 0 and self.inodes_free < self.inodes * 0.001)

    def describe(self) -> str:
        used = f"{100 * (1 - self.free / self.size):.1f} % used, " if self.size else ""
        inodes = f", inodes {100 * (1 - self.inodes_free / self.inodes):.1f} % used" if self.inodes else ""
        return f"{used}{self.free / (1 << 30):.2f} of {self.size / (1 << 30):.2f} GiB free{inodes}"


def ask_volumes(paths: Mapping[str, Path], timeout_s: float) -> dict[str, Volume | str]:
    """Name → its volume, or why there is none. All are asked at once; never longer than ``timeout_s``."""
    answers: dict[str, Volume | str] = {}
    asked = {name: _ask(path) for name, path in paths.items()}
    deadline = time.monotonic() + timeout_s
    for name, (pid, descriptor) in asked.items():
        answers[name] = _hear(descriptor, deadline)
        os.close(descriptor)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # one that hangs in the kernel stays behind
    return answers


def _ask(path: Path) -> tuple[int, int]:
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, _answer(path).encode()[:_MAX_ANSWER])
        finally:
            os._exit(0)
    os.close(write_end)
    return pid, read_end


def _answer(path: Path) -> str:
    try:
        told = os.statvfs(path)
    except OSError as exc:
        return json.dumps(exc.strerror or "cannot be asked")
    size, free = told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize
    return json.dumps(asdict(Volume(size, free, told.f_files, told.f_favail)))


def _hear(descriptor: int, deadline: float) -> Volume | str:
    if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        return NO_ANSWER
    try:
        told = json.loads(os.read(descriptor, _MAX_ANSWER))
    except ValueError:
        return NO_ANSWER
    return Volume(**told) if isinstance(told, dict) else str(told)


def find_mount(path: Path, mounts: str) -> str:
    """Device, kind and place of the file system that holds an absolute path, from /proc/self/mounts; never asks it."""
    best, told = -1, "no mount"
    for line in mounts.splitlines():
        device, where, kind, *_ = [*(part.replace("\\040", " ") for part in line.split()), "", "", ""]
        inside = where == "/" or str(path) == where or str(path).startswith(f"{where}/")
        if inside and len(where) >= best:
            best, told = len(where), f"{kind} {device} on {where}"
    return told
