"""Configuration files for the native and the container cluster, from the same templates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template

from minislurm.settings import CONF, TIMERS, Settings

# batch: may be preempted at once. graced: 20 s of warning first. urgent: preempts both.
PARTITIONS = {
    "batch": "PriorityTier=1 PreemptMode=REQUEUE",
    "graced": "PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
    "urgent": "PriorityTier=10 PreemptMode=OFF",
}


@dataclass(frozen=True)
class Place:
    """Where daemons find each other and their files: what differs between native and containers."""

    controller: str
    dbd_host: str
    dbd_address: str
    storage_host: str
    bind_address: str
    db_client: str
    etc_dir: str
    run_dir: str
    log_dir: str
    state_dir: str
    spool_dir: str
    db_dir: str
    device_dir: str
    munge_socket: str
    node_addresses: dict[str, tuple[str, str, int]]  # node -> (hostname, address, port)
    slurmctld_port: int
    slurmdbd_port: int
    mariadb_port: int


def render_all(
    settings: Settings, place: Place, *, cgroup: str, storage_pass: str, version: tuple[int, int]
) -> dict[str, str]:
    """File name -> text of every configuration file. `cgroup` is v1, v2 or none."""
    values = {
        **{key: str(value) for key, value in vars(place).items()},
        **TIMERS[settings.timers],
        "cluster_name": settings.cluster_name,
        "timers": settings.timers,
        "cpus": str(settings.cpus),
        "gpus": str(settings.gpus),
        "gpu_type": settings.gpu_type,
        "memory_mib": str(settings.memory_mib),
        "def_mem_per_cpu": str(max(1, settings.memory_mib // (2 * settings.cpus))),
        "proctrack": "linuxproc" if cgroup == "none" else "cgroup",
        "task_plugin": "none" if cgroup == "none" else "cgroup",
        "cgroup": cgroup,
        "cgroup_lines": "\n".join(_cgroup_lines(cgroup, version)),
        "gres_lines": "\n".join(_gres_lines(settings, place.device_dir)),
        "node_lines": "\n".join(_node_lines(place)),
        **{f"{kind}_rules": rules for kind, rules in PARTITIONS.items()},
        "lane_lines": "\n".join(_lane_lines(settings)),
        "accounting_lines": "\n".join(_accounting_lines(settings, place)),
        "gres": f" Gres=gpu:{settings.gpu_type}:{settings.gpus}" if settings.gpus else "",
        "storage_pass": storage_pass,
    }
    names = ["slurm.conf", "gres.conf", "cgroup.conf"]
    if settings.accounting:
        names += ["slurmdbd.conf", "mariadb.cnf", "mariadb-init.sql"]
    rendered = {name: Template(_template(name)).substitute(values) for name in names}
    rendered["slurm.conf"] = override(rendered["slurm.conf"], settings.extra)
    return rendered


def _template(name: str) -> str:
    return Path(CONF / f"{name}.in").read_text(encoding="utf-8")


def override(text: str, extra: list[str]) -> str:
    """`slurm.conf` with `--set Key=Value` lines put in: the template's line for that key gives way."""
    keys = {item.partition("=")[0].lower() for item in extra}
    kept = [line for line in text.splitlines() if line.partition("=")[0].strip().lower() not in keys]
    return "\n".join([*kept, *extra]).rstrip() + "\n"


def _cgroup_lines(cgroup: str, version: tuple[int, int]) -> list[str]:
    if cgroup == "none":
        # 23.02 and older know no "disabled" and need no file; 23.11 and newer look for systemd without it.
        return ["CgroupPlugin=disabled"] if version >= (23, 11) else ["# linuxproc: no cgroups in use"]
    lines = [
        f"CgroupPlugin=cgroup/{cgroup}",
        "CgroupMountpoint=/sys/fs/cgroup",
        # CPUs and devices are imagined, so only memory can be confined for real.
        "ConstrainCores=no",
        "ConstrainDevices=no",
        "ConstrainRAMSpace=yes",
        "ConstrainSwapSpace=no",
    ]
    if cgroup == "v2":
        lines += ["IgnoreSystemd=yes", "EnableControllers=yes"] if version >= (23, 2) else ["IgnoreSystemd=yes"]
    return lines


def _gres_lines(settings: Settings, device_dir: str) -> list[str]:
    if not settings.gpus:
        return []
    last = settings.gpus - 1
    files = f"{device_dir}/gpu[0-{last}]" if last else f"{device_dir}/gpu0"
    return [f"NodeName={node} Name=gpu Type={settings.gpu_type} File={files}" for node in settings.node_names]


def _node_lines(place: Place) -> list[str]:
    return [
        f"NodeName={node} NodeHostname={host} NodeAddr={address} Port={port}"
        for node, (host, address, port) in place.node_addresses.items()
    ]


def _lane_lines(settings: Settings) -> list[str]:
    """Partitions for tests that run side by side: lane K has every N-th node, in partitions laneK-*.

    They stand in the file, as a partition made with scontrol is lost when slurmctld restarts.
    """
    if settings.lanes < 2:
        return []
    lines = ["# lanes for parallel tests"]
    for lane in range(settings.lanes):
        nodes = ",".join(settings.node_names[lane :: settings.lanes])
        for kind, rules in PARTITIONS.items():
            lines.append(f"PartitionName=lane{lane}-{kind} Nodes={nodes} {rules}")
    return lines


def _accounting_lines(settings: Settings, place: Place) -> list[str]:
    if not settings.accounting:
        return ["AccountingStorageType=accounting_storage/none"]
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={place.dbd_address}",
        f"AccountingStoragePort={place.slurmdbd_port}",
        f"AccountingStoragePass={place.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
    ]
