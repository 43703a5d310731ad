"""Which nodes are suspect, and how sure: never the node of a victim, never for a program's own fault."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurmtrain.core.diagnosis.model import Suspect
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding

# NVIDIA's catalogue, condensed: which codes condemn the machine, which the program, which nothing.
XID_NODE = frozenset((46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 171, 172))
XID_RESTART = frozenset((94,))
XID_PROGRAM = frozenset((8, 13, 25, 31, 32, 39, 40, 41, 43, 68, 69, 70, 71, 72, 73, 75, 76, 77, 80))
XID_NOTICE = frozenset((37, 38, 44, 45, 63, 92, 121, 137, 154, 157))

NODE_CAUSES = frozenset(
    (
        "node_fail",
        "gpu_ecc",
        "gpu_lost",
        "gpu_nvlink",
        "gpu_unavailable",
        "gpu_driver_fault",
        "ib_link_error",
        "illegal_instruction",
    )
)
_GIB = {"KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 1024.0, "bytes": 2**-30}
_AMOUNT = r"(\d+(?:\.\d+)?) (KiB|MiB|GiB|TiB|bytes)"
_TOTAL = re.compile(r"total capaci?ty of " + _AMOUNT + r" of which " + _AMOUNT + r" is free")
_OTHER = re.compile(r"Process \d+ has " + _AMOUNT + r" memory in use")
_OWN = re.compile(r"this process has " + _AMOUNT + r" memory in use")
_ALLOCATED = re.compile(_AMOUNT + r" is allocated by PyTorch")
_RESERVED = re.compile(_AMOUNT + r" is reserved by PyTorch")


def node_of(
    finding: Finding | None, rank: int | None, facts: Facts, ends: Sequence[Finding], *, ranks_per_task: int = 1
) -> str | None:
    """The node where it happened, as far as it is known; `ranks_per_task` is 0 when tasks say nothing about ranks."""
    if finding is not None and finding.node and not finding.node[0].isdigit():
        return finding.node
    if rank is not None and facts.rank_nodes and rank in facts.rank_nodes:
        return facts.rank_nodes[rank]
    if rank is not None and ranks_per_task > 0:
        task = rank // ranks_per_task
        for item in sorted(facts.rank_exits, key=lambda item: item.order):
            if item.rank == task and item.node:
                return item.node
        for end in ends:
            if task in task_numbers(end.values.get("tasks", "")):
                return end.values.get("node")
    return _only_node(finding, facts, ends)


def _only_node(finding: Finding | None, facts: Facts, ends: Sequence[Finding]) -> str | None:
    if len(facts.nodes) == 1:
        return facts.nodes[0]
    named = {end.values["node"] for end in ends if end.values.get("node")}
    return named.pop() if finding is not None and len(named) == 1 and not facts.nodes else None


def task_numbers(text: str) -> set[int]:
    """The numbers of srun's ``0-2,5``; a range of more than 100 000 is cut."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            end = int(last) if last.isdigit() else int(first)
            found.update(range(int(first), min(end, int(first) + 100_000) + 1))
    return found


def foreign_memory_gib(text: str) -> float | None:
    """GPU memory that other processes hold, when an out-of-memory message says that they hold most of it."""
    total = _TOTAL.search(text)
    if total is None:
        return None
    used = _gib(total, 1) - _gib(total, 3)
    own = max((_gib(found, 1) for found in (_OWN.search(text), _ALLOCATED.search(text)) if found), default=None)
    reserved = _RESERVED.search(text)
    if own is None:
        return None
    if reserved is not None and _OWN.search(text) is None:
        own += _gib(reserved, 1)
    foreign = used - own
    return foreign if used > 0 and foreign > 0.5 * used and foreign > 1.0 else None


def _gib(found: re.Match[str], group: int) -> float:
    return float(found.group(group)) * _GIB[found.group(group + 1)]


def suspects_of(cause: str, finding: Finding | None, node: str | None, facts: Facts) -> tuple[Suspect, ...]:
    """The nodes to distrust for this cause, most suspect first."""
    if cause == "node_fail" and facts.failed_nodes:
        return tuple(Suspect(name, 0.95, "Slurm declared it failed") for name in facts.failed_nodes)
    if cause == "ib_link_error" and finding is not None:
        return _link_suspects(finding, node)
    if cause == "cuda_oom" and finding is not None and node is not None:
        foreign = foreign_memory_gib(finding.text)
        if foreign is not None:
            return (Suspect(node, 0.8, f"another process holds {foreign:.1f} GiB of its GPU's memory"),)
    if cause == "slurm_launch_failed" and node is not None:
        return (Suspect(node, 0.6, "Slurm could not start processes on it"),)
    if cause in NODE_CAUSES and node is not None:
        return (Suspect(node, _sureness(cause, finding), _reason(cause, finding)),)
    return ()


def _link_suspects(finding: Finding, node: str | None) -> tuple[Suspect, ...]:
    found = []
    peer = finding.values.get("peer")
    if peer:
        found.append(Suspect(peer, 0.5, "the peer whose messages were not answered"))
    if node is not None:
        found.append(Suspect(node, 0.4 if peer else 0.6, "it reported the broken link"))
    return tuple(found)


def _sureness(cause: str, finding: Finding | None) -> float:
    if cause in ("gpu_unavailable", "illegal_instruction"):
        return 0.6
    xid = finding.values.get("xid") if finding is not None else None
    if xid is not None and xid.isdigit() and int(xid) in XID_RESTART:
        return 0.5
    return 0.9


def _reason(cause: str, finding: Finding | None) -> str:
    xid = finding.values.get("xid") if finding is not None else None
    if xid is not None:
        return f"the kernel logged Xid {xid} there"
    return {
        "node_fail": "Slurm lost it",
        "gpu_ecc": "an uncorrectable memory error of a GPU",
        "gpu_lost": "a GPU is gone",
        "gpu_nvlink": "an NVLink error",
        "gpu_unavailable": "a GPU is missing or busy",
        "gpu_driver_fault": "its GPU driver does not work",
        "illegal_instruction": "its CPU lacks instructions that the program uses",
    }.get(cause, "named by the error")
