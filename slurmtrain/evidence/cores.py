"""Finding the core files that a launch left on a node, wherever the kernel was told to put them, and keeping some."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.evidence.bounded import Output
from slurmtrain.evidence.core_file import CoreFile, read_core_file

FOLDER = "cores"
PATTERN = Path("/proc/sys/kernel/core_pattern")
_SPECIFIER = re.compile(r"%(.)")
_MOST_LOOKED_AT = 200
_COPIED = 900 << 20  # bytes that are copied from another file system; more takes longer than a scene may
_CLOCK_S = 2.0  # a file system's clock may lag


@dataclass(frozen=True, slots=True)
class Found:
    """A core file of this launch."""

    path: Path
    about: CoreFile
    size: int
    at: float

    @property
    def rank(self) -> str:
        """The rank that it was of; "" where the file does not tell."""
        environ = self.about.environ
        found = environ.get("RANK") or environ.get("SLURM_PROCID") or ""
        return found if found.isascii() and found.isdigit() else ""

    def describe(self) -> str:
        try:
            name = signal.Signals(self.about.signal).name
        except ValueError:
            name = f"signal {self.about.signal}"
        who = f"rank {self.rank}" if self.rank else "a process"
        return f"{who} (process {self.about.pid}, {Path(self.about.program).name or '?'}) died of {name}"


def core_glob(pattern: str, folder: Path) -> Path | None:
    """Where a pattern of core(5) puts files, with ``*`` for what varies; None where a program gets them (``|``)."""
    text = pattern.strip()
    if text.startswith("|") or not text:
        return None
    named = _SPECIFIER.sub(lambda match: "%" if match[1] == "%" else "*", text.replace("[", "[[]").replace("?", "[?]"))
    path = folder / named
    return path.with_name(f"{path.name}*")  # kernel.core_uses_pid adds the pid


def find_cores(pattern: str, folder: Path, since: float, owner: Mapping[str, str]) -> list[Found]:
    """Core files since then of processes that had the variables ``owner``, the earliest first.

    One that was cut off before its environment is nobody's: it may be of another job that works in the same folder.
    """
    place = core_glob(pattern, folder)
    if place is None:
        return []
    found = []
    for path in _glob(place):
        status = path.lstat()
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
        if own and status.st_size and status.st_mtime >= since - _CLOCK_S:
            about = read_core_file(path)
            if about is not None and all(about.environ.get(name) == value for name, value in owner.items()):
                found.append(Found(path, about, status.st_blocks * 512, status.st_mtime))
    return sorted(found, key=lambda core: core.at)


def _glob(place: Path) -> list[Path]:
    fixed = next(parent for parent in place.parents if "*" not in str(parent))
    return sorted(fixed.glob(str(place.relative_to(fixed))))[:_MOST_LOOKED_AT]


def keep_core(core: Found, launch_dir: Path, node: str, *, only_one: bool) -> tuple[Path | None, str]:
    """Move it beside the launch. Its new place, and a sentence; no place where another one is kept instead.

    Core files in a working directory that nodes share are seen by all of them: a rename is done by one.
    """
    cores = launch_dir / FOLDER
    cores.mkdir(mode=0o700, exist_ok=True)
    if only_one and not _claim(cores / "kept"):
        core.path.unlink(missing_ok=True)
        return None, f"{core.describe()}; its core file is not kept, another rank's is"
    target = cores / f"core-{f'rank-{core.rank}' if core.rank else node}-{core.about.pid}"
    try:
        core.path.rename(target)
    except FileNotFoundError:
        return None, ""  # another node was faster
    except OSError:  # another file system
        if core.size > _COPIED:
            return core.path, f"{core.describe()}; its core file is too large to copy and stays on {node}: {core.path}"
        try:
            shutil.copyfile(core.path, target)
        except OSError as exc:
            target.unlink(missing_ok=True)
            return core.path, f"{core.describe()}; its core file stays on {node}: {core.path} ({exc.strerror})"
        core.path.unlink(missing_ok=True)
    target.chmod(0o600)
    return target, f"{core.describe()}; core file {target} ({core.size >> 20} MiB)"


def _claim(marker: Path) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def back_trace(core: Path, program: str, run: Callable[..., Output], timeout_s: float) -> str:
    """gdb's back traces of all threads, "" where it has none. Nothing that the program's folder names is loaded."""
    words = (
        "set pagination off", "set width 200", "set print frame-arguments scalars", "info threads",
        "thread apply all bt 60",
    )  # fmt: skip
    commands = [part for word in words for part in ("-ex", word)]
    target = [program] if program.startswith("/") and Path(program).exists() else []
    safe = ("-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off")
    done = run("gdb", *safe, *commands, *target, f"--core={core}", timeout_s=timeout_s, max_bytes=4 << 20)
    return done.stdout if "#0" in done.stdout else ""


def piped_to(pattern: str) -> str:
    """The program that the kernel hands cores to; "" for none."""
    return pattern.strip()[1:].split()[0] if pattern.strip().startswith("|") and pattern.strip()[1:].split() else ""


def ask_handler(handler: str, since: float, run: Callable[..., Output]) -> tuple[str, str]:
    """What the program that gets this node's cores knows: its report, and a sentence on how to get at the files."""
    name = Path(handler).name
    if name == "systemd-coredump":
        listed = run("coredumpctl", "--no-pager", "list", f"--since=@{since:.0f}", timeout_s=4)
        shown = run("coredumpctl", "--no-pager", "info", f"--since=@{since:.0f}", timeout_s=6, max_bytes=1 << 20)
        how = "systemd-coredump has this node's core files: `coredumpctl list` there, `coredumpctl dump PID -o FILE`"
        return "\n".join(text for text in (listed.stdout, shown.stdout) if text.strip()), how
    places = {"apport": "/var/crash", "abrt-hook-ccpp": "/var/spool/abrt"}
    if name in places:
        files = list(_recent(Path(places[name]), since))
        how = f"{name} has this node's core files, in {places[name]}"
        return "\n".join(files), how + (
            f": {', '.join(files[:4])}" if files else "; it left none since the launch began"
        )
    return "", f"this node hands core files to {handler}: ask the administrators where they are"


def _recent(folder: Path, since: float) -> Iterator[str]:
    try:
        for entry in os.scandir(folder):
            status = entry.stat(follow_symlinks=False)
            if status.st_mtime >= since and status.st_uid == os.getuid():
                yield entry.path
    except OSError:
        return


def prune_cores(run_dir: Path, keep: int) -> list[Path]:
    """Remove the core files of all launches but the newest ``keep`` that have some; the folders that went."""
    folders = [path for path in run_dir.glob(f"attempts/*/launches/*/{FOLDER}") if path.is_dir()]
    doomed = sorted(folders, key=_order)[:-keep]
    for folder in doomed:
        shutil.rmtree(folder, ignore_errors=True)
    return doomed


def _order(folder: Path) -> tuple[int, int]:
    launch, attempt = folder.parent.name, folder.parent.parent.parent.name
    return (int(attempt) if attempt.isdigit() else -1, int(launch) if launch.isdigit() else -1)
