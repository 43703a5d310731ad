"""cluster.json and the shell exports: what other programs need to know about a running cluster."""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from minislurm.settings import REPO, TIMERS, Settings


def common_facts(settings: Settings, version: str, uid: int, gid: int) -> dict[str, Any]:
    """What cluster.json says of a cluster of any kind; paths are the same inside and outside of containers."""
    layout = settings.layout
    slurmtrain = layout.venv / "bin" / "slurmtrain"
    user = {"name": settings.user, "uid": uid, "gid": gid, "home": str(layout.home(settings.user))}
    return {
        "backend": settings.backend,
        "name": settings.name,
        "cluster_name": settings.cluster_name,
        "slurm_version": version,
        "slurm_conf": str(layout.slurm_conf),
        "nodes": settings.node_names,
        "cpus_per_node": settings.cpus,
        "gpus_per_node": settings.gpus,
        "gpu_type": settings.gpu_type,
        "memory_mib_per_node": settings.memory_mib,
        "partitions": ["batch", "graced", "urgent"],
        "lanes": settings.lanes,
        "timers": settings.timers,
        "timer_values": TIMERS[settings.timers],
        "accounting": settings.accounting,
        "cgroup": settings.cgroup,
        "user": user,
        "store": str(layout.store(settings.user)),
        "shared": str(layout.shared),
        "dir": str(layout.root),
        "log_dir": str(layout.log),
        "venv": str(layout.venv),
        "slurmtrain": str(slurmtrain) if slurmtrain.exists() else None,
        "mini_slurm": str(REPO / "docker" / "mini-slurm"),
    }


def write_cluster_json(settings: Settings, facts: dict[str, Any]) -> None:
    """Publish the facts by renaming, readable for everybody."""
    path = settings.layout.cluster_json
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    temporary.chmod(0o644)
    temporary.replace(path)


def shell_exports(settings: Settings) -> str:
    """Lines for `eval "$(docker/mini-slurm env)"`."""
    layout = settings.layout
    values = {
        "SLURM_CONF": str(layout.slurm_conf),
        "MINI_SLURM_JSON": str(layout.cluster_json),
        "MINI_SLURM_USER": settings.user,
        "MINI_SLURM_STORE": str(layout.store(settings.user)),
    }
    lines = [f"export {key}={shlex.quote(value)}" for key, value in values.items()]
    lines.append(f'export PATH={shlex.quote(str(layout.venv / "bin"))}:"$PATH"')
    return "\n".join(lines)
