"""One collector in a child process of its own session, ended at its time limit and at its size limit.

Its standard output becomes ``output.txt`` in its folder; lines of its standard error that begin with ``note:`` are kept
as notes, and the last other line says why it failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from slurmtrain.evidence.collector import Collector
from slurmtrain.evidence.folder import measure
from slurmtrain.evidence.scene import Scene

_NICE = 10
_MEASURE_S = 0.3
_AFTER_KILL_S = 1.0  # what then still waits in the kernel is left behind
_MAX_TOLD = 16 << 10
_MAX_NOTES = 20
_MAX_FDS = 4096


class Child:
    """A running collector. Raises ``OSError`` where its folder cannot be made or no process can be started."""

    def __init__(self, collector: Collector, scene: Scene, deadline: float) -> None:
        self.collector = collector
        self.out = scene.out
        self.started = time.monotonic()
        self.status: int | None = None  # of waitpid
        self.why_killed = ""
        self.too_big = False
        self.stuck = False  # could not be ended
        self._deadline = min(deadline, self.started + collector.time_limit_s)
        self._out_of_budget = deadline < self.started + collector.time_limit_s
        self._killed_at: float | None = None
        self._measure_at = self.started + _MEASURE_S
        self._told = b""
        scene.out.mkdir(mode=0o700)
        self._read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self.pid = os.fork()
        except OSError:
            os.close(self._read_end)
            os.close(write_end)
            raise
        if self.pid == 0:
            _be_collector(collector, scene, write_end)
        os.close(write_end)

    def poll(self) -> bool:
        """Whether it is over; ends it when it must be."""
        self._listen()
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        if self.status is not None:
            self._listen()
            end_session(self.pid)
            return True
        now = time.monotonic()
        if self._killed_at is not None:
            self.stuck = now - self._killed_at > _AFTER_KILL_S
            return self.stuck
        if now >= self._deadline:
            self._kill("the time for the scene was over" if self._out_of_budget else "its time limit was over")
        elif now >= self._measure_at:
            self._measure_at = now + _MEASURE_S
            if measure(self.out) > self.collector.size_limit:
                self.too_big = True
                self._kill("its size limit was reached")
        return False

    @property
    def timed_out(self) -> bool:
        return bool(self.why_killed) and not self.too_big

    def close(self) -> None:
        os.close(self._read_end)

    def notes(self) -> list[str]:
        lines = self._lines()
        return [line[5:].strip() for line in lines if line.startswith("note:")][:_MAX_NOTES]

    def last_word(self) -> str:
        """Why it failed, in its own words."""
        lines = [line for line in self._lines() if not line.startswith("note:")]
        return lines[-1] if lines else ""

    def _lines(self) -> list[str]:
        text = self._told.decode("utf-8", "replace")
        lines = ("".join(c if c.isprintable() else " " for c in line).strip()[:300] for line in text.splitlines())
        return [line for line in lines if line]

    def _listen(self) -> None:
        """Bounded at each turn, so that one that floods keeps nobody from its time limit."""
        for _ in range(16):
            if not select.select([self._read_end], [], [], 0)[0]:
                return
            data = os.read(self._read_end, 1 << 16)
            if not data:
                return
            self._told += data[: max(0, _MAX_TOLD - len(self._told))]

    def _kill(self, why: str) -> None:
        self.why_killed = why
        self._killed_at = time.monotonic()
        end_session(self.pid)


def end_session(leader: int) -> None:
    """KILL every process of the session, also those that made a group of their own in it, and stopped ones."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for entry in Path("/proc").iterdir():
        pid = int(entry.name) if entry.name.isdigit() else leader
        with contextlib.suppress(OSError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def _be_collector(collector: Collector, scene: Scene, told: int) -> NoReturn:
    """In the child: become the collector and never come back."""
    code = 70
    try:
        os.setsid()
        _redirect(scene.out, told)
        _limit(collector)
        os.chdir(scene.out)
        if collector.python:
            _collect(collector, scene)
            code = 0
        else:
            _execute(collector, scene)
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    except BaseException:  # noqa: BLE001 - somebody else's code
        traceback.print_exc(limit=-5)
        code = 1
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code & 0xFF)


def _redirect(out: Path, told: int) -> None:
    os.umask(0o077)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_blocking(told, True)
    os.dup2(told, 2)
    output = os.open(out / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.dup2(output, 1)
    os.closerange(3, _MAX_FDS)
    sys.stdout = open(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115


def _limit(collector: Collector) -> None:
    """TERM and its like reach whole steps; only its limits end a collector."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for kind, most in ((resource.RLIMIT_FSIZE, collector.size_limit), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (soft, soft))
    with contextlib.suppress(OSError):
        os.nice(_NICE)


def _collect(collector: Collector, scene: Scene) -> None:
    module = ModuleType("slurmtrain_collector")
    module.__file__ = f"{collector.name}.py"
    sys.modules[module.__name__] = module
    exec(compile(collector.source, module.__file__, "exec"), module.__dict__)  # noqa: S102 - what it is for
    collect: Any = module.__dict__["collect"]
    collect(scene)


def _execute(collector: Collector, scene: Scene) -> None:
    """A script runs from memory: the shared file system may forbid to run what lies there."""
    question = os.memfd_create("scene", 0)
    os.write(question, json.dumps(scene.to_dict(), default=str).encode("utf-8", "replace"))
    os.lseek(question, 0, os.SEEK_SET)
    os.dup2(question, 0)
    script = os.memfd_create(collector.name, 0)
    view = memoryview(collector.source.encode())
    while view:
        view = view[os.write(script, view) :]
    os.fchmod(script, 0o500)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(  # noqa: S606
        f"/proc/self/fd/{script}", [collector.name], dict(os.environ)
    )
