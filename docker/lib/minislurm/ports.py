"""Free TCP ports: one block per cluster, below the range that the kernel hands out itself."""

from __future__ import annotations

import socket
from pathlib import Path

from minislurm.errors import MiniSlurmError
from minislurm.settings import Settings, load_settings

FIRST_BASE = 26800
BLOCK = 64
LAST_BASE = 32000


def is_free(port: int) -> bool:
    """Whether nothing listens on the port on any local address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def choose_base(wanted: int, count: int, taken: set[int]) -> int:
    """The wanted base if its ports are free, or without a wish the first free block.

    `taken` are the bases of other clusters on this machine, running or not.
    """
    if wanted:
        for port in range(wanted, wanted + count):
            if not is_free(port):
                raise MiniSlurmError(f"port {port} is taken by another program; choose other ports with --port-base.")
        return wanted
    for base in range(FIRST_BASE, LAST_BASE, BLOCK):
        if base not in taken and all(is_free(port) for port in range(base, base + count)):
            return base
    raise MiniSlurmError(f"no {count} free ports between {FIRST_BASE} and {LAST_BASE}; choose some with --port-base.")


def bases_of_others(settings: Settings) -> set[int]:
    """First ports of the clusters beside this one, running or not."""
    own = Path(settings.directory)
    others = [load_settings(path) for path in own.parent.glob("*") if path != own and path.is_dir()]
    return {other.port_base for other in others if other}
