"""Which nodes a job must avoid: its user's list joined with the run's, never so many that it cannot start."""

from __future__ import annotations

from slurmtrain.core.avoid import avoided_now, choose_excluded, ever_avoided
from slurmtrain.core.decision import Decision
from slurmtrain.core.nodeset import expand_nodes, fold_nodes
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import JobRecord, SlurmClient

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
        chosen = _choose(slurm, spec, run, now, deciding, theirs, needed, record.partition, record.node_count)
    except (SlurmtrainError, ValueError):
        return None  # without an answer the job is better off anywhere than waiting for ever
    return None if theirs | set(chosen) == listed else fold_nodes([*sorted(theirs), *chosen])


def exclude_for_new_job(
    slurm: SlurmClient, spec: Spec, run: Run, now: float, deciding: Decision | None = None
) -> str | None:
    """The run's part of a new job's list, where its user's stands in the job file; None for nothing."""
    try:
        theirs = set(expand_nodes(spec.resources.exclude or ""))
        needed = set(expand_nodes(spec.resources.nodelist or ""))
        partition = spec.resources.partition or ""
        chosen = _choose(slurm, spec, run, now, deciding, theirs, needed, partition, spec.resources.nodes)
    except (SlurmtrainError, ValueError):
        return None
    return fold_nodes(chosen) or None


def _choose(
    slurm: SlurmClient,
    spec: Spec,
    run: Run,
    now: float,
    deciding: Decision | None,
    theirs: set[str],
    needed: set[str],
    partition: str,
    wanted: int,
) -> list[str]:
    avoided = avoided_now(run, spec.retry, now, deciding)
    if not avoided:
        return []
    nodes = slurm.nodes()
    partitions = set(partition.split(",")) - {""}
    inside = {n.name: n for n in nodes if not partitions or partitions & set(n.partitions)}
    usable = {name for name, node in inside.items() if not node.states & _UNUSABLE}
    if spec.resources.reservation:
        usable &= _reserved(slurm, spec.resources.reservation)
    return choose_excluded(
        avoided, needed=needed, usable=usable, known={n.name for n in nodes}, theirs=theirs, wanted=wanted
    )


def _reserved(slurm: SlurmClient, names: str) -> set[str]:
    """The nodes of these reservations: the job can run nowhere else."""
    wanted = set(names.split(","))
    return {node for r in slurm.reservations() if r.name in wanted for node in expand_nodes(r.nodes)}
