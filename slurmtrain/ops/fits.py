"""Whether the cluster has as many nodes as a job asks for: Slurm may take one that can never start."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import SlurmClient

_ASK_FROM = 5  # nodes: of a small job Slurm is not asked once more; whether it can start `status` says
_SHOWN = 12


def warn_of_size(spec: Spec, slurm: SlurmClient) -> list[str]:
    """A sentence for each part of the job that asks for more nodes than its partitions have. One sinfo; never raises.

    Without ``EnforcePartLimits`` sbatch takes such a job, and it waits with the reason PartitionConfig for ever.
    """
    parts = [(spec.resources.nodes, spec.resources.partition)]
    parts += [(part.nodes, part.partition or spec.resources.partition) for part in spec.components]
    if max(nodes for nodes, _ in parts) < _ASK_FROM:
        return []
    try:
        have = Counter(name for node in slurm.nodes() for name in node.partitions)
    except SlurmtrainError:
        return []
    return list(dict.fromkeys(_misfits(parts, have)))


def _misfits(parts: list[tuple[int, str | None]], have: Counter[str]) -> Iterator[str]:
    for nodes, asked in parts:
        names = [name for name in (asked.split(",") if asked else have) if name in have]
        if not names or nodes <= max(have[name] for name in names):
            continue
        listed = ", ".join(f"{name} has {have[name]}" for name in sorted(names)[:_SHOWN])
        which = f"partition {listed}" if len(names) == 1 else f"of the partitions {listed}"
        yield f"it asks for {nodes} nodes, and {which}: as it is, such a job never starts"
