"""What the verbs need of the native cluster."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from minislurm import commands, describe, faults, native, packages, procs, users, venv
from minislurm.errors import MiniSlurmError
from minislurm.settings import Settings

up, down, clean_up, running = native.up, native.down, native.clean_up, native.running
ready, fault, services, report_up = commands.nodes_ready, faults.inject, native.daemons, native.report_up


def check_may(what: str) -> None:
    """The native cluster is root's business: daemons of several accounts, cgroups, devices."""
    if os.geteuid() != 0:
        raise MiniSlurmError(f"{what} needs root on the native cluster; run it with sudo.")


def status_rows(settings: Settings) -> list[tuple[str, str, str]]:
    """(daemon, its pid or 'not running', node state) of everything."""
    alive = set(running(settings))
    states = commands.node_states(settings) if "slurmctld" in alive else {}
    rows = []
    for name in services(settings):
        record = procs.load_record(settings.layout.run, name)
        text = f"pid {record.pid}" if record and name in alive else "not running"
        node = name.removeprefix("slurmd-")
        rows.append((name, text, states.get(node, "unknown") if node in settings.node_names else ""))
    return rows


def install(settings: Settings, extras: Iterable[str]) -> bool:
    """slurmtrain into the cluster's virtual environment, if it changed."""
    target = settings.layout.venv
    return venv.ensure(target, extras, sys.version, partial(venv.install_here, target))


def facts(settings: Settings) -> dict[str, Any]:
    """The content of cluster.json."""
    user = pwd.getpwnam(settings.user)
    records = {name: procs.load_record(settings.layout.run, name) for name in services(settings)}
    return {
        **describe.common_facts(settings, commands.slurm_version(), user.pw_uid, user.pw_gid),
        "bin_dir": str(Path(packages.program("squeue") or "/usr/bin/squeue").parent),
        "sbin_dir": str(Path(packages.program("slurmctld") or "/usr/sbin/slurmctld").parent),
        "ports": {name: port for name, port in settings.ports.items() if name != "ssh"},
        "pids": {name: record.pid for name, record in records.items() if record and record.alive},
    }


def shell(settings: Settings, argv: list[str]) -> int:
    """Become the researcher in the shared store; never returns."""
    user = pwd.getpwnam(settings.user)
    cwd = settings.layout.store(settings.user)
    users.become(user, users.login_env(settings, user), cwd, argv or ["bash", "-i"])
    return 127
