"""Processes by identity, not by number: a pid counts only together with its start time and boot."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for a later one with the same pid."""

    pid: int
    start: int  # clock ticks since boot, field 22 of /proc/PID/stat
    boot: str

    @property
    def alive(self) -> bool:
        return start_time(self.pid) == self.start and self.boot == boot_id()

    def send(self, number: signal.Signals) -> None:
        """Send a signal if this very process is still there."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def boot_id() -> str:
    """The kernel's id of this boot."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def start_time(pid: int) -> int | None:
    """Start time of a live process in ticks since boot; None if it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    rest = stat.rpartition(")")[2].split()
    return None if rest[0] in "ZX" else int(rest[19])


def parent_of(pid: int) -> int | None:
    """Parent of a process; None if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])


def identify(pid: int) -> Identity | None:
    """The identity of a live process."""
    start = start_time(pid)
    return None if start is None else Identity(pid, start, boot_id())


def record_path(run_dir: Path, name: str) -> Path:
    return run_dir / f"{name}.proc.json"


def load_record(run_dir: Path, name: str) -> Identity | None:
    """The process recorded as daemon `name`, dead or alive; None without a readable record."""
    try:
        data = json.loads(record_path(run_dir, name).read_text(encoding="utf-8"))
        return Identity(int(data["pid"]), int(data["start"]), str(data["boot"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_running(run_dir: Path, name: str) -> bool:
    """Whether the recorded daemon is alive."""
    identity = load_record(run_dir, name)
    return identity is not None and identity.alive


def start_daemon(
    run_dir: Path, name: str, argv: list[str], *, env: dict[str, str], log: Path, user: str | None = None
) -> Identity:
    """Start a foreground daemon in a session of its own and record its identity."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=env,
            cwd="/",
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
        )
    start = start_time(child.pid)
    identity = Identity(child.pid, -1 if start is None else start, boot_id())
    _CHILDREN.append(child)  # kept, so that poll() can reap it and no zombie looks alive
    text = json.dumps({"pid": identity.pid, "start": identity.start, "boot": identity.boot})
    record_path(run_dir, name).write_text(text + "\n", encoding="ascii")
    return identity


_CHILDREN: list[subprocess.Popen[bytes]] = []


def stop(identities: Iterable[Identity], grace_s: float) -> list[Identity]:
    """CONT and TERM, wait at most `grace_s`, then KILL; returns those that had to be killed."""
    waiting = [identity for identity in identities if identity.alive]
    for number in (signal.SIGTERM, signal.SIGCONT):
        for identity in waiting:
            identity.send(number)
    wait_until(lambda: not any(identity.alive for identity in waiting), grace_s, 0.02)
    stubborn = [identity for identity in waiting if identity.alive]
    kill_now(stubborn)
    return stubborn


def kill_now(identities: Iterable[Identity]) -> None:
    """KILL and wait (bounded) until they are gone."""
    left = list(identities)
    for identity in left:
        identity.send(signal.SIGKILL)
    wait_until(lambda: not any(identity.alive for identity in left), 5, 0.01)


def wait_until(condition: Callable[[], bool], timeout_s: float, step_s: float = 0.05) -> bool:
    """Poll until the condition holds; False after the time-out."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        for child in _CHILDREN:
            child.poll()
        if time.monotonic() >= deadline:
            return condition()
        time.sleep(step_s)
    return True


def all_pids() -> list[int]:
    """Every pid that /proc lists."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environ_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where it cannot be read."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, _, value in pairs}


def cgroup_of(pid: int) -> str:
    """The text of /proc/PID/cgroup; empty where it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def executable_of(pid: int) -> str:
    """Name of the program file a process runs; empty for kernel threads and strangers."""
    return Path(_link(Path(f"/proc/{pid}/exe"))).name.removesuffix(" (deleted)")


def directory_of(pid: int) -> str:
    """Working directory of a process; empty where it cannot be read."""
    return _link(Path(f"/proc/{pid}/cwd"))


def open_files_of(pid: int) -> list[str]:
    """Where the open descriptors of a process point."""
    try:
        return [_link(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
