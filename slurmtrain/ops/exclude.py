"""Which nodes a requeued job must avoid: the user's list joined with ours, never so many that it cannot start."""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.core.nodeset import expand_nodes, fold_nodes
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import JobRecord, SlurmClient

_UNUSABLE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "MAINT", "UNKNOWN"})


def join_excluded(slurm: SlurmClient, record: JobRecord, ours: Sequence[str]) -> str | None:
    """The node list to set, or None to leave the job's list as it is.

    A node that ``-w`` names is never excluded (the job would wait with BadConstraints for ever), and nothing is where
    the partition would be left with fewer usable nodes than the job asks for.
    """
    try:
        needed = set(expand_nodes(record.required_nodes)) if record.required_nodes else set()
        avoid = [node for node in ours if node not in needed]
        if not avoid:
            return None
        listed = expand_nodes(slurm.excluded_nodes(record.job_id) or "")
        excluded = list(dict.fromkeys([*listed, *avoid]))
        return fold_nodes(excluded) if _can_spare(slurm, record, set(excluded)) else None
    except (SlurmtrainError, ValueError):
        return None  # without an answer the job is better off anywhere than waiting for ever


def _can_spare(slurm: SlurmClient, record: JobRecord, excluded: set[str]) -> bool:
    partitions = set(record.partition.split(","))
    usable = {
        node.name
        for node in slurm.nodes()
        if partitions & set(node.partitions) and not node.states & _UNUSABLE and node.name not in excluded
    }
    return len(usable) >= record.node_count
