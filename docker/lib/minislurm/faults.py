"""Failures on purpose, on the native cluster: a node's power loss, a stopped controller, a lost database."""

from __future__ import annotations

import fcntl
import os
import signal

from minislurm import cgroups, members, native, procs
from minislurm.errors import MiniSlurmError
from minislurm.settings import Settings

ACTIONS = ("kill", "power-off", "stop", "cont", "term", "start", "heal")


def inject(settings: Settings, action: str, target: str) -> None:
    """kill, stop (SIGSTOP), cont, term or start one daemon; power-off takes a node with all its processes.

    heal continues or starts whatever is stopped or dead: the daemons all share, and the nodes given.
    """
    if os.geteuid() != 0:
        raise MiniSlurmError("injecting a fault needs root.")
    if action == "heal":
        heal(settings, settings.node_names if target == "all" else target.split(","))
        return
    names = native.daemons(settings)
    name = f"slurmd-{target}" if target in settings.node_names else target
    if name not in names:
        raise MiniSlurmError(
            f"unknown target {target!r}: expected one of {', '.join([*settings.node_names, *names[:4]])}.", code=2
        )
    if action == "power-off":
        if target not in settings.node_names:
            raise MiniSlurmError(f"power-off takes a node, not {target!r}.", code=2)
        power_off(settings, target)
    elif action == "start":
        start(settings, name)
    else:
        _signal(settings, name, action)


def power_off(settings: Settings, node: str) -> None:
    """All processes of a node gone at once: frozen first, so that none can see another die."""
    for _ in range(5):
        found = members.of_node(settings, node)
        if not found:
            break
        for identity in found:
            identity.send(signal.SIGSTOP)
        procs.kill_now(found)
    for directory in cgroups.directories_of(node):
        cgroups.remove(directory)


def start(settings: Settings, name: str) -> None:
    """Start a daemon again unless it runs."""
    if not procs.is_running(settings.layout.run, name):
        native.start_daemon(settings, name)


def heal(settings: Settings, nodes: list[str]) -> None:
    """Undo every fault on the shared daemons and on these nodes; several healers take turns."""
    shared = [name for name in native.daemons(settings) if not name.startswith("slurmd-")]
    with (settings.layout.run / "heal.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in [*shared, *(f"slurmd-{node}" for node in nodes if node in settings.node_names)]:
            identity = procs.load_record(settings.layout.run, name)
            if identity is not None and identity.alive:
                identity.send(signal.SIGCONT)
            else:
                native.start_daemon(settings, name)


def _signal(settings: Settings, name: str, action: str) -> None:
    identity = procs.load_record(settings.layout.run, name)
    if identity is None or not identity.alive:
        raise MiniSlurmError(f"{name} is not running.", code=3)
    if action == "kill":
        procs.kill_now([identity])
    elif action == "term":
        procs.stop([identity], 15)
    else:
        identity.send(signal.SIGSTOP if action == "stop" else signal.SIGCONT)
