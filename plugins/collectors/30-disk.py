"""Space and inodes of the file systems that a training writes to. One that does not answer is named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.disk import NO_ANSWER, Volume, ask_volumes, find_mount

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 8
SIZE_LIMIT = 256 << 10
_ANSWER_S = 3.0
_SHOWN = 30
_SCRATCH = ("TMPDIR", "SLURM_TMPDIR", "LOCAL_SCRATCH", "SCRATCH", "WORK", "HOME")


def collect(scene: Scene) -> None:
    paths = {"store": scene.store, "checkpoints": scene.checkpoint_dir, "work_dir": scene.work_dir}
    paths |= {name: Path(scene.environ[name]) for name in _SCRATCH if scene.environ.get(name, "").startswith("/")}
    paths |= {"/tmp": Path("/tmp"), "/dev/shm": Path("/dev/shm")}  # noqa: S108 - looked at, not written to
    mounts = Path("/proc/self/mounts").read_text(errors="replace")
    answers = ask_volumes(paths, _ANSWER_S)
    for name, path in paths.items():
        answer, mount = answers[name], find_mount(path, mounts)
        shown = answer.describe() if isinstance(answer, Volume) else answer
        print(f"{name}: {path}: {shown} ({mount})")
        if answer == NO_ANSWER:
            scene.note(f"{name} ({path}) {answer}")
        elif isinstance(answer, Volume) and answer.is_full:
            scene.note(f"{name} ({path}) is full: {shown}")
    _list_shared_memory(scene)
    done = scene.run("quota", "-w", timeout_s=3) if os.access("/usr/bin/quota", os.X_OK) else None
    if done is not None and done.stdout.strip():
        scene.write("quota.txt", done.stdout)


def _list_shared_memory(scene: Scene) -> None:
    """What fills /dev/shm: data loaders and NCCL leave segments there when they are killed."""
    found = []
    for entry in os.scandir("/dev/shm"):  # noqa: S108
        status = entry.stat(follow_symlinks=False)
        found.append((status.st_blocks * 512, status.st_uid, entry.name))
    if found:
        lines = [f"{size}\t{uid}\t{name}\n" for size, uid, name in sorted(found, reverse=True)[:_SHOWN]]
        scene.write("shared-memory.txt", f"{len(found)} entries; bytes, owner, name:\n" + "".join(lines))
