"""Limits of the ranks and of the node: open files, processes, locked memory, core files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 3
SIZE_LIMIT = 256 << 10
_SETTINGS = (
    "fs/file-max", "fs/file-nr", "fs/nr_open", "kernel/pid_max", "kernel/threads-max", "kernel/core_pattern",
    "kernel/shmmax", "kernel/shmmni", "kernel/numa_balancing", "kernel/yama/ptrace_scope", "kernel/dmesg_restrict",
    "vm/max_map_count", "vm/overcommit_memory", "vm/overcommit_ratio", "vm/swappiness", "vm/zone_reclaim_mode",
)  # fmt: skip


def collect(scene: Scene) -> None:
    owners = [(f"rank {rank.rank} (process {rank.pid})", str(rank.pid)) for rank in scene.ranks[:8]]
    parts = []
    for title, pid in owners or [("this step, the ranks are gone", str(os.getppid()))]:
        try:
            parts.append(f"== {title}\n{Path('/proc', pid, 'limits').read_text()}")
        except OSError as exc:
            scene.note(f"limits of {title}: {exc.strerror}")
    scene.write("limits.txt", "\n".join(parts))
    for name in _SETTINGS:
        try:
            print(f"{name.replace('/', '.')} = {Path('/proc/sys', name).read_text().strip()}")
        except OSError:
            continue
