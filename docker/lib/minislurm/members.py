"""Which processes belong to a cluster: daemons, slurmstepd and the processes of jobs."""

from __future__ import annotations

import os

from minislurm import cgroups, procs
from minislurm.settings import Settings

DAEMONS = {
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmstepd",
    "munged",
    "mariadbd",
    "slurmctld-wlm",
    "slurmd-wlm",
    "slurmstepd-wlm",
}


def of_cluster(settings: Settings) -> dict[int, str]:
    """pid -> node name ('' for the daemons of no node) of everything that this cluster started.

    Evidence, any of it: SLURM_CONF in the environment is this cluster's file; the process is in a
    cgroup of one of its nodes; it is one of Slurm's daemons and holds files of the cluster open.
    """
    conf = str(settings.layout.slurm_conf)
    root = f"{settings.layout.root}/"
    in_cgroup = {
        pid: node
        for node in settings.node_names
        for directory in cgroups.directories_of(node)
        for pid in cgroups.pids_in(directory)
    }
    found: dict[int, str] = {}
    for pid in procs.all_pids():
        if pid == os.getpid():
            continue
        if pid in in_cgroup:
            found[pid] = in_cgroup[pid]
        elif _is_daemon_of(pid, root):
            found[pid] = _node_of_daemon(pid, settings)
        elif (environ := procs.environ_of(pid)).get("SLURM_CONF") == conf and "SLURM_JOB_ID" in environ:
            found[pid] = environ.get("SLURMD_NODENAME", "")
    return _with_descendants(found)


def _with_descendants(found: dict[int, str]) -> dict[int, str]:
    """Add the children of slurmstepd and of job processes: a job may have emptied its environment."""
    nodes = {pid: node for pid, node in found.items() if node}
    parents = {pid: procs.parent_of(pid) for pid in procs.all_pids()}
    for pid in parents:
        chain: list[int] = []
        at: int | None = pid
        while at and at > 1 and at not in nodes and len(chain) < 64:
            chain.append(at)
            at = parents.get(at)
        if at in nodes:
            found.update((link, nodes[at]) for link in chain)
    return found


def of_node(settings: Settings, node: str) -> list[procs.Identity]:
    """Identities of a node's slurmd, its slurmstepd and every job process on it, slurmd first."""
    pids = [pid for pid, where in of_cluster(settings).items() if where == node]
    ordered = sorted(pids, key=_rank)
    return [identity for pid in ordered if (identity := procs.identify(pid))]


def _rank(pid: int) -> int:
    name = procs.executable_of(pid)
    return 0 if name.startswith("slurmd") else 1 if name.startswith("slurmstepd") else 2


def _is_daemon_of(pid: int, root: str) -> bool:
    if procs.executable_of(pid) not in DAEMONS:
        return False
    return any(path.startswith(root) for path in [*procs.open_files_of(pid), procs.directory_of(pid)])


def _node_of_daemon(pid: int, settings: Settings) -> str:
    """slurmd and slurmstepd write to slurmd-<node>.log; the others belong to no node."""
    paths = set(procs.open_files_of(pid))
    for node in settings.node_names:
        if str(settings.layout.log / f"slurmd-{node}.log") in paths:
            return node
    return ""
