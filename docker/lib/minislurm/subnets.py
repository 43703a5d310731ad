"""A free private subnet for the containers, so that each has an address of its own that survives its death.

With Docker's name service a dead node's name leads to time-outs, and they stop slurmctld for seconds.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

from minislurm import engine
from minislurm.errors import MiniSlurmError

CANDIDATES = [ipaddress.IPv4Network(f"10.137.{third}.0/24") for third in range(256)]


def choose(exclude: Iterable[str] = ()) -> str:
    """The first /24 that overlaps no route of this machine and no network of the engine."""
    taken = [*_routes(), *_engine_networks(), *(ipaddress.IPv4Network(text) for text in exclude if text)]
    for candidate in CANDIDATES:
        if not any(candidate.overlaps(other) for other in taken):
            return str(candidate)
    raise MiniSlurmError(f"no free subnet between {CANDIDATES[0]} and {CANDIDATES[-1]} for the containers.")


def _routes() -> list[ipaddress.IPv4Network]:
    """Networks that this machine reaches directly or through a gateway, the default route left out."""
    found = []
    try:
        lines = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    for line in lines:
        cells = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(cells[i]), "little") for i in (1, 7))
        if mask:
            found.append(ipaddress.IPv4Network((address, bin(mask).count("1"))))
    return found


def _engine_networks() -> list[ipaddress.IPv4Network]:
    ids = engine.docker("network", "ls", "-q").stdout.split()
    text = engine.docker("network", "inspect", *ids).stdout if ids else "[]"
    configs = [config for network in json.loads(text or "[]") for config in (network["IPAM"]["Config"] or [])]
    subnets = [config.get("Subnet", "") for config in configs]
    return [ipaddress.IPv4Network(subnet) for subnet in subnets if subnet and ":" not in subnet]


def addresses(subnet: str, names: list[str]) -> dict[str, str]:
    """name -> address, from .10 on (the gateway has .1)."""
    hosts = list(ipaddress.IPv4Network(subnet).hosts())
    return {name: str(hosts[9 + i]) for i, name in enumerate(names)}
