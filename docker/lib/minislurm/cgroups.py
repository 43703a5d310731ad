"""Which cgroups this machine has for slurmd, and what a cluster left in them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V1_NEEDED = ("freezer", "memory", "cpuset")


def detect() -> str:
    """'v1', 'v2' or 'none': what slurmd could use here, tried by making a directory."""
    types = _mount_types()
    if all(types.get(str(ROOT / name)) == "cgroup" for name in V1_NEEDED):
        return "v1" if all(_can_make(ROOT / name) for name in V1_NEEDED) else "none"
    if types.get(str(ROOT)) == "cgroup2":
        controllers = _read(ROOT / "cgroup.controllers").split()
        return "v2" if "memory" in controllers and _can_make(ROOT) else "none"
    return "none"


def _mount_types() -> dict[str, str]:
    rows = [line.split() for line in _read(Path("/proc/mounts")).splitlines()]
    return {row[1]: row[2] for row in rows if len(row) > 2}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _can_make(parent: Path) -> bool:
    probe = parent / f"mini-slurm-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def prepare_v2() -> None:
    """What slurmd 22.05 expects systemd to have done: system.slice, with the controllers of a step enabled.

    Newer releases do this themselves (EnableControllers). Where systemd runs nothing is missing.
    """
    wanted = {"cpu", "cpuset", "memory", "pids"} & set(_read(ROOT / "cgroup.controllers").split())
    slice_ = ROOT / "system.slice"
    with contextlib.suppress(OSError):
        slice_.mkdir(exist_ok=True)
    for folder in (ROOT, slice_):
        missing = wanted - set(_read(folder / "cgroup.subtree_control").split())
        for name in sorted(missing):
            with contextlib.suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{name}", encoding="ascii")


def directories_of(node: str) -> list[Path]:
    """The cgroup directories that the slurmd named `node` makes (one per controller, or one scope)."""
    names = (f"slurm_{node}", f"{node}_slurmstepd.scope")
    bases = [ROOT, ROOT / "system.slice", *(p for p in _children(ROOT))]
    return [base / name for base in bases for name in names if (base / name).is_dir()]


def _children(path: Path) -> list[Path]:
    try:
        return [p for p in path.iterdir() if p.is_dir() and not p.is_symlink()]
    except OSError:
        return []


def remove(directory: Path) -> None:
    """Remove a cgroup with all its children; one that is still in use stays."""
    for child in _children(directory):
        remove(child)
    with contextlib.suppress(OSError):
        directory.rmdir()


def pids_in(directory: Path) -> set[int]:
    """Processes in a cgroup and all its children."""
    found: set[int] = set()
    for base, _, files in os.walk(directory):
        if "cgroup.procs" in files:
            text = _read(Path(base) / "cgroup.procs")
            found.update(int(word) for word in text.split() if word.isdigit())
    return found
