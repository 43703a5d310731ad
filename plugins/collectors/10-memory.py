"""Memory: what the node has left, and what the job's control groups were allowed, used and were killed for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.cgroups import describe_kills, job_groups, read_group

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 5
SIZE_LIMIT = 1 << 20
_PROC = ("meminfo", "vmstat", "buddyinfo", "loadavg", "swaps", "pressure/memory", "pressure/cpu", "pressure/io")


def collect(scene: Scene) -> None:
    parts = []
    for name in _PROC:
        try:
            parts.append(f"== /proc/{name}\n{Path('/proc', name).read_text()}")
        except OSError:
            continue  # no pressure stall information before Linux 4.20, none where it is switched off
    scene.write("node.txt", "\n".join(parts))
    groups = job_groups(["self", *(str(rank.pid) for rank in scene.ranks)])
    if not groups:
        scene.note("no control group of the job is visible")
    values = {group: read_group(group) for group in groups}
    text = "\n".join(
        f"== {group}\n" + "".join(f"{name}: {value}\n" for name, value in found.items())
        for group, found in values.items()
        if found
    )
    scene.write("cgroups.txt", text)
    for group, found in values.items():
        told = describe_kills(found)
        if told:
            scene.note(f"{group.name}: {told}")
