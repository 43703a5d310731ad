"""Which rank of a failed launch failed first, which followed, which was never heard of; and the nodes they ran on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import RankExit
from slurmtrain.core.spec import Spec, all_components

MAX_RANKS = 131_072  # of a launch; what lies beyond is not drawn
MOST_EXITS = 1000  # what the journal keeps of a launch; beyond it no word means nothing
_STATES = {"T": "stopped by a signal", "t": "held by a debugger", "D": "waited in the kernel (storage or a device)"}


class Mark(Enum):
    """What is known of one rank."""

    FIRST = "first"  # failed first: the cause
    FOLLOWED = "followed"  # ended afterwards, as a consequence
    STUCK = "stuck"  # of a hang: was stopped, or waited in the kernel
    GONE = "gone"  # of a hang: had no process any more, while the others had
    SILENT = "silent"  # no word of its end, while there is of others
    PLAIN = "plain"  # ended with the launch


@dataclass(frozen=True, slots=True)
class RankMark:
    """One rank; ``detail`` in words, "" where there is nothing to say."""

    rank: int
    mark: Mark
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NodeMark:
    """One node and its ranks. ``suspect`` says why the node itself is distrusted, ``silent`` that it never reported."""

    node: str
    ranks: tuple[RankMark, ...]
    suspect: str = ""
    silent: bool = False


def build_rank_map(
    nodes: Sequence[str],
    spec: Spec,
    diagnosis: Diagnosis | None,
    exits: Sequence[RankExit],
    *,
    reported: Collection[str] = (),
    states: Mapping[int, tuple[str, str, int | None]] | None = None,
) -> tuple[NodeMark, ...]:
    """Every node with its ranks, in Slurm's order: ranks are laid out node by node.

    ``reported`` are the nodes whose companion was heard of (none: not known), ``states`` rank → (node, letter of
    /proc's state, step) as companions saw it in a hang. Under torchrun srun's task is a node.
    """
    shape = _shape(spec, len(nodes))
    per_task = spec.launcher == "torchrun"
    by_task = {item.rank: item for item in exits if item.rank is not None}
    by_node = {item.node: item for item in reversed(exits) if item.node} if per_task else {}
    first = min(exits, key=lambda item: item.order, default=None)
    culprit = diagnosis.rank if diagnosis is not None else None
    why = {suspect.node: suspect.why for suspect in diagnosis.suspects} if diagnosis is not None else {}
    seen = states or {}
    looked_at = {state[0] for state in seen.values()}
    found, rank = [], 0
    for position, node in enumerate(nodes):
        marks = []
        for number in range(rank, min(rank + shape[position], MAX_RANKS)):
            task = (by_node.get(node) or by_task.get(position)) if per_task else by_task.get(number)
            is_first = number == culprit if culprit is not None else task is not None and task is first
            mark = _mark(number, task, is_first=is_first, anyone=0 < len(exits) < MOST_EXITS)
            if number in seen:
                mark = _mark_seen(mark, *seen[number][1:])
            elif node in looked_at and (task is None or not per_task):
                mark = _mark_gone(mark)
            marks.append(mark)
        rank += shape[position]
        silent = bool(reported) and node not in reported
        found.append(NodeMark(node, tuple(marks), why.get(node, ""), silent))
    return tuple(found)


def _shape(spec: Spec, nodes: int) -> list[int]:
    """Ranks on each node."""
    parts = [part.tasks_per_node for part in all_components(spec) for _ in range(min(part.nodes, nodes))]
    return parts if len(parts) == nodes else [spec.resources.tasks_per_node] * nodes


def _mark(rank: int, task: RankExit | None, *, is_first: bool, anyone: bool) -> RankMark:
    """What srun said of its end."""
    if is_first:
        return RankMark(rank, Mark.FIRST, _ending(task))
    if task is not None:
        return RankMark(rank, Mark.FOLLOWED, _ending(task))
    return RankMark(rank, Mark.SILENT if anyone else Mark.PLAIN)


def _mark_seen(mark: RankMark, letter: str, step: int | None) -> RankMark:
    """Of a hang: how its process was found says more than how we ended it afterwards."""
    at = f"at step {step}" if step is not None else ""
    if letter not in _STATES:
        alive = Mark.PLAIN if mark.mark is Mark.SILENT else mark.mark
        return RankMark(mark.rank, alive, ", ".join(filter(None, (mark.detail, at))))
    kind = Mark.FIRST if mark.mark is Mark.FIRST else Mark.STUCK
    return RankMark(mark.rank, kind, ", ".join(filter(None, (_STATES[letter], at))))


def _mark_gone(mark: RankMark) -> RankMark:
    """Of a hang: its companion looked and found no process of it."""
    words = "had no process any more when the others hung"
    kind = Mark.FIRST if mark.mark is Mark.FIRST else Mark.GONE
    return RankMark(mark.rank, kind, f"{mark.detail}; {words}" if mark.detail else words)


def _ending(task: RankExit | None) -> str:
    if task is None:
        return ""
    return f"ended by signal {task.signal}" if task.signal is not None else f"exit code {task.exit_code}"


def count_marks(nodes: Sequence[NodeMark]) -> Mapping[Mark, int]:
    """How many ranks have each mark."""
    counts: dict[Mark, int] = {}
    for node in nodes:
        for item in node.ranks:
            counts[item.mark] = counts.get(item.mark, 0) + 1
    return counts
