"""What a dead launch still holds on this node, and waiting until it is given back.

Processes first: they are found by their environment and killed. The driver may hold GPU memory for a while after the
last of them (`nvidia-smi` then lists a pid that no longer exists). Files in /dev/shm that nobody has open any more
would stay until the job ends. Run on each node between two launches; see ``agent.releasing``.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from slurmtrain.agent.processes import end_processes, find_launch_processes

_SHM = Path("/dev/shm")  # noqa: S108 - where torch and NCCL share memory
_SHARED = re.compile(r"(torch_|nccl-|cuda\.shm\.|psm_|sem\.mp-|sem\.loky-)")
_SMI = ("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader,nounits")
_SMI_S = 20.0
_PAUSE_S = 0.2


def release_node(
    job_id: str,
    since: float,
    wait_s: float,
    *,
    gpus: str | None = None,
    query: Callable[[str | None], str] | None = None,
) -> list[str]:
    """End what launches of this job left here and wait until it is released; what is still held, in words.

    ``since`` is when the launch began (epoch seconds): older files in /dev/shm are not its. ``gpus`` are the devices of
    the job as CUDA_VISIBLE_DEVICES names them.
    """
    deadline = time.monotonic() + wait_s
    while True:
        processes = find_launch_processes(job_id)
        end_processes(processes, signal.SIGKILL)
        ours = {process.pid for process in processes}
        held = [f"process {pid}" for pid in sorted(ours)[:5]]
        held += [f"GPU memory of process {pid}" for pid in _holders((query or _ask_smi)(gpus), ours)[:5]]
        if not held or time.monotonic() >= deadline:
            remove_shared_memory(since)
            return held
        time.sleep(_PAUSE_S)


def _ask_smi(gpus: str | None) -> str:
    """One pid on each line; "" where there is no such tool or it does not answer: then nothing is waited for."""
    which = ["-i", gpus] if gpus and re.fullmatch(r"[0-9,]+|(GPU-[0-9a-f-]+,?)+", gpus) else []
    try:
        done = subprocess.run([*_SMI, *which], capture_output=True, text=True, timeout=_SMI_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _holders(answer: str, ours: Collection[int]) -> list[int]:
    """Those that are ours or that no longer exist. A living process of somebody else's is the node's trouble."""
    pids = {int(word) for word in answer.split() if word.isdigit()}
    return sorted(pid for pid in pids if pid in ours or not Path(f"/proc/{pid}").exists())


def remove_shared_memory(since: float, folder: Path = _SHM) -> list[str]:
    """Remove what torch, NCCL and multiprocessing left there: ours, made since then, open or mapped by nobody.

    Nothing is removed where one of our own processes cannot be looked into.
    """
    found = list(_candidates(folder, since))
    used = _used_names(folder) if found else None
    removed = []
    for path in found if used is not None else ():
        if path.name not in used:  # type: ignore[operator]
            try:
                path.unlink()
            except OSError:
                continue
            removed.append(path.name)
    return removed


def _candidates(folder: Path, since: float) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        ours = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
        if ours and info.st_ctime >= since and _SHARED.match(entry.name):
            yield Path(entry.path)


def _used_names(folder: Path) -> set[str] | None:
    """Names in the folder that a process of ours has open or mapped; None where that cannot be told."""
    used: set[str] = set()
    prefix = f"{folder}/"
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == "1":
            continue
        try:
            if entry.stat().st_uid != os.geteuid():
                continue
            used |= _names_of(entry, prefix)
        except FileNotFoundError:
            continue  # it ended meanwhile
        except ProcessLookupError:
            continue
        except OSError:
            return None
    return used


def _names_of(process: Path, prefix: str) -> set[str]:
    found = set()
    for line in (process / "maps").read_text("utf-8", "replace").splitlines():
        name = line.partition(prefix)[2]
        if name:
            found.add(name.removesuffix(" (deleted)"))
    for link in (process / "fd").iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(prefix):
            found.add(target.removeprefix(prefix))
    return found
