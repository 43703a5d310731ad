"""Slurm's own commands, run as root on the login host of the native cluster."""

from __future__ import annotations

import subprocess

from minislurm import packages
from minislurm.settings import Settings

RESPONDING = ("idle", "mixed", "allocated", "completing")


def slurm_env(settings: Settings) -> dict[str, str]:
    """Environment for root's Slurm commands: this cluster's file and nothing of the caller's Slurm."""
    return {"PATH": packages.PATH, "SLURM_CONF": str(settings.layout.slurm_conf), "LC_ALL": "C.UTF-8", "HOME": "/root"}


def slurm(settings: Settings, *argv: str, timeout_s: float = 15) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands as root; a command that hangs counts as failed (rc 124)."""
    try:
        return subprocess.run(
            argv, env=slurm_env(settings), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 124, "", f"{argv[0]} did not answer within {timeout_s:g} s")


def slurm_version() -> str:
    """The installed Slurm's version, such as 22.05.8."""
    out = subprocess.run(
        [packages.require_program("slurmctld", "slurmctld"), "-V"], capture_output=True, text=True, timeout=20
    ).stdout
    words = out.split()
    return words[1] if len(words) > 1 else "0.0"


def node_states(settings: Settings) -> dict[str, str]:
    """node -> state as sinfo spells it ('idle', 'mixed', 'down*'); empty when slurmctld is away."""
    out = slurm(settings, "sinfo", "-h", "-N", "-p", "batch", "-o", "%N %T").stdout
    return dict(line.split(maxsplit=1) for line in out.splitlines() if len(line.split()) == 2)


def nodes_ready(settings: Settings) -> bool:
    states = node_states(settings)
    return len(states) == settings.nodes and all(
        s in ("idle", "mixed", "allocated", "completing") for s in states.values()
    )
