"""Which nodes a job must avoid: its user's list joined with the run's, never so many that it cannot start."""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.core.avoid import Avoided, avoided_now, choose_excluded, ever_avoided
from slurmtrain.core.constraint import Part
from slurmtrain.core.decision import Decision
from slurmtrain.core.nodeset import expand_nodes, fold_nodes
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Component, Resources, Spec, all_components
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import JobRecord, NodeRecord, SlurmClient

_UNUSABLE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "MAINT", "UNKNOWN"})


def join_excluded(
    slurm: SlurmClient, record: JobRecord, spec: Spec, run: Run, now: float, deciding: Decision | None = None
) -> str | None:
    """The node list to set for a queued job, ``""`` for none; None to leave it as it is.

    What stands in the job's list and is not ours is the user's and stays; what is ours and too old goes.
    """
    if not ever_avoided(run) and not (deciding and deciding.exclude):
        return None
    try:
        listed = set(expand_nodes(slurm.excluded_nodes(record.job_id) or ""))
        own = set(expand_nodes(spec.resources.exclude or ""))
        ours = ever_avoided(run) | set(deciding.exclude if deciding else ())
        theirs = own | (listed - ours)
        needed = set(expand_nodes(record.required_nodes)) if record.required_nodes else set()
        avoided = avoided_now(run, spec.retry, now, deciding)
        chosen = _choose(slurm, spec, avoided, theirs, needed, record)
    except (SlurmtrainError, ValueError):
        return None  # without an answer the job is better off anywhere than waiting for ever
    return None if theirs | set(chosen) == listed else fold_nodes([*sorted(theirs), *chosen])


def exclude_for_new_job(
    slurm: SlurmClient, spec: Spec, run: Run, now: float, deciding: Decision | None = None
) -> str | None:
    """The run's part of a new job's list, where its user's stands in the job file; None for nothing."""
    try:
        theirs = set(expand_nodes(spec.resources.exclude or ""))
        named = (part.nodelist for part in all_components(spec))
        needed = {node for expression in named for node in expand_nodes(expression or "")}
        chosen = _choose(slurm, spec, avoided_now(run, spec.retry, now, deciding), theirs, needed)
    except (SlurmtrainError, ValueError):
        return None
    return fold_nodes(chosen) or None


def _choose(
    slurm: SlurmClient,
    spec: Spec,
    avoided: Sequence[Avoided],
    theirs: set[str],
    needed: set[str],
    queued: JobRecord | None = None,
) -> list[str]:
    if not avoided:
        return []
    nodes = slurm.nodes()
    parts = [_part(slurm, spec, component, nodes, queued) for component in all_components(spec)]
    return choose_excluded(avoided, needed=needed, parts=parts, known={n.name for n in nodes}, theirs=theirs)


def _part(
    slurm: SlurmClient,
    spec: Spec,
    component: Resources | Component,
    nodes: Sequence[NodeRecord],
    queued: JobRecord | None,
) -> Part:
    """What a component asks for. Of a job of one component Slurm knows partition and size better (``queued``)."""
    partition, wanted = component.partition or spec.resources.partition or "", component.nodes
    if queued is not None and not spec.components:
        partition, wanted = queued.partition, queued.node_count
    partitions = set(partition.split(",")) - {""}
    reservation = component.reservation or spec.resources.reservation
    usable = {
        node.name: node.features
        for node in nodes
        if (not partitions or partitions & set(node.partitions)) and not node.states & _UNUSABLE
    }
    if reservation:
        reserved = _reserved(slurm, reservation)
        usable = {name: features for name, features in usable.items() if name in reserved}
    return Part(usable, wanted, component.constraint or "")


def _reserved(slurm: SlurmClient, names: str) -> set[str]:
    """The nodes of these reservations: the job can run nowhere else."""
    wanted = set(names.split(","))
    return {node for r in slurm.reservations() if r.name in wanted for node in expand_nodes(r.nodes)}
