"""Whether Slurm's control group of a step is still there. slurmstepd removes it before it ends in the ordinary way."""

from __future__ import annotations

import re
from pathlib import Path

_STEP = re.compile(r"(/.*/job_[0-9]+/step_)[^/]+(?:/.*)?")


def find_step_cgroup(step: str, proc: Path = Path("/proc")) -> Path | None:
    """The folder of another step of this very job on this node, which may be gone; None where steps have none.

    Both layouts: ``6:freezer:/slurm_n1/uid_7/job_60/step_0`` (v1) and
    ``0::/system.slice/slurmstepd.scope/job_60/step_0/user/task_0`` (v2).
    """
    try:
        lines = (proc / "self" / "cgroup").read_text("utf-8", "replace").splitlines()
        mounts = [line.split() for line in (proc / "self" / "mounts").read_text("utf-8", "replace").splitlines()]
    except OSError:
        return None
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        found = _STEP.fullmatch(path)
        if found is None or controllers not in ("", "freezer"):
            continue
        for _, where, kind, options, *_ in mounts:
            fits = kind == "cgroup2" if not controllers else kind == "cgroup" and controllers in options.split(",")
            if fits:
                return Path(f"{where}{found[1]}{step}")
    return None
