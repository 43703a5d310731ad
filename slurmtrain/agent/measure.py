"""What the batch host can measure about a launch: processes killed for memory, GPUs that are gone, the last step."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from slurmtrain.store.rundir import HEARTBEAT

GPU_WAIT_S = 5.0
# A GPU that fell off the bus keeps its device file, but it cannot be opened; opening may also hang for ever.
_OPEN_GPUS = """
import glob, os
n = 0
for path in glob.glob("/dev/nvidia[0-9]*"):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        n += 1
    except OSError:
        pass
print(n)
"""


def count_oom_kills(cgroup: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Processes of this job that the kernel killed on this node for memory; None where the cgroups do not tell.

    cgroup v2 counts for the whole job (``memory.events`` of ``job_N`` holds its steps', ended ones too). v1 counts for
    each cgroup alone and forgets those of ended steps.
    """
    try:
        lines = cgroup.read_text("utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        found = re.match(r"(.*/job_\d+)(?:/|$)", path)
        if found and controllers in ("", "memory"):
            folder = root / ("memory" if controllers else "") / found.group(1).lstrip("/")
            names = ["memory.events"] if not controllers else ["memory.oom_control", "*/memory.oom_control"]
            counts = [_oom_kills(file) for name in names for file in folder.glob(name)]
            known = [count for count in counts if count is not None]
            return sum(known) if known else None
    return None


def _oom_kills(file: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", file.read_text("ascii", "replace"), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) if found else None


def count_gpus(env: Mapping[str, str]) -> tuple[int | None, int | None]:
    """GPUs that Slurm gave the batch host, and how many of them can be opened; None where it is not known.

    Only whole GPUs named by number are counted: parts of a GPU (MIG) have no device file of their own.
    """
    given = env.get("SLURM_JOB_GPUS", "")
    if not re.fullmatch(r"\d{1,4}(,\d{1,4}){0,255}", given) or not Path("/dev/nvidiactl").exists():
        return None, None
    return given.count(",") + 1, _open_gpus()


def _open_gpus() -> int | None:
    """In a process of its own, which is left alone when a broken driver holds it."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _OPEN_GPUS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
    try:
        text, _ = process.communicate(timeout=GPU_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return int(text) if process.returncode == 0 and text.strip().isdigit() else None


def heartbeat_age(launch_folder: Path | None) -> float | None:
    """Seconds since the training last said that it goes on; None where it never did."""
    with contextlib.suppress(OSError):
        if launch_folder is not None:
            return max(0.0, time.time() - (launch_folder / HEARTBEAT).stat().st_mtime)
    return None
