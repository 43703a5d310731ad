"""Ports and error counters of InfiniBand and RoCE adapters, and of the node's other network interfaces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.fabric import find_trouble, read_ports

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 5
SIZE_LIMIT = 1 << 20
_SYS = "/sys/class/infiniband"


def collect(scene: Scene) -> None:
    ports = read_ports(Path(_SYS))
    for port, values in ports.items():
        print(f"== {port}")
        print("".join(f"{name} = {value}\n" for name, value in values.items()))
        for trouble in find_trouble(values):
            scene.note(f"{port}: {trouble}")
    if not ports:
        scene.note(f"no InfiniBand adapter ({_SYS})")
    scene.write("net-dev.txt", Path("/proc/net/dev").read_text())
