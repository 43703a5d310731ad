"""Heterogeneous jobs: which ranks the tasks of a component are."""

from __future__ import annotations

from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.spec import Spec, all_components


def task_offsets(spec: Spec, nodes: str) -> dict[str, int]:
    """Node → what must be added to the task numbers that srun tells of it; empty for a job without components.

    srun counts the tasks of each component from 0 in its messages, while ranks and labels go on from one component to
    the next (22.05, tried). ``nodes`` are those of all components, in their order.
    """
    if not spec.components:
        return {}
    try:
        names = expand_nodes(nodes)
    except ValueError:
        return {}
    offsets: dict[str, int] = {}
    offset = 0
    for part in all_components(spec):
        offsets.update(dict.fromkeys(names[len(offsets) : len(offsets) + part.nodes], offset))
        offset += part.nodes * (1 if spec.launcher == "torchrun" else part.tasks_per_node)
    return offsets
