"""The picture of a failed launch's ranks on their nodes, as values that a template places."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from slurmtrain.core.facts import RankExit
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.rank_map import Mark, NodeMark, build_rank_map, count_marks
from slurmtrain.core.spec import Spec
from slurmtrain.evidence.rank_states import STATES, RankState, read_states
from slurmtrain.ops.explain import Explanation
from slurmtrain.ops.extract import launch_at
from slurmtrain.ops.timeline import RunView, read_nodes
from slurmtrain.store.folded import unfolded

_MAX_TILES = 1024  # nodes whose ranks are drawn; beyond that only those with something to tell
_MAX_TOLD = 200  # ranks that the table lists
_TELLING = frozenset({Mark.FIRST, Mark.STUCK, Mark.GONE})
_TOLD = _TELLING | {Mark.SILENT}


def find_ranks(found: Explanation, detail: float) -> dict[str, Any] | None:
    """The failed launch's ranks on their nodes; None where nothing failed or the nodes are not known."""
    view, spec = found.view, found.plan.spec if found.plan is not None else None
    launch = launch_at(view.state, found.trouble_in) if view is not None else None
    if view is None or spec is None or found.trouble_in is None or launch is None:
        return None
    nodes = _nodes_of(found, found.trouble_in[0])
    exits = _exits(launch.ended.rank_exits if launch.ended is not None else ())
    reported: Collection[str] = read_nodes(view.run, found.trouble_in[0])
    states = _states(view, found.trouble_in[0], launch.number)
    marked = build_rank_map(nodes, spec, found.trouble, exits, reported=reported, states=states)
    return _rank_values(marked, spec, detail) if marked else None


def _states(view: RunView, attempt: int, launch: int) -> Mapping[int, RankState]:
    """What companions saw of the ranks in a hang, also of a run whose small files were joined."""
    folder = view.run.attempt(attempt).launch(launch)
    if states := read_states(folder):
        return states
    inside = folder.relative_to(view.run.path)
    with unfolded(view.run.path, f"{inside}/{STATES}") as copy:
        return read_states(copy / inside) if copy is not None else {}


def _nodes_of(found: Explanation, attempt: int) -> list[str]:
    expression = next((row.nodes for row in found.launches if row.attempt == attempt), "")
    try:
        return expand_nodes(expression)
    except ValueError:
        return []


def _exits(rows: Sequence[Mapping[str, Any]]) -> list[RankExit]:
    found = []
    for row in rows:
        rank, code, signal, order = (
            v if isinstance(v := row.get(k), int) else None for k in ("rank", "exit_code", "signal", "order")
        )
        node = row.get("node")
        found.append(RankExit(rank, node if isinstance(node, str) else None, code, signal, order or 0))
    return found


def _rank_values(nodes: Sequence[NodeMark], spec: Spec, detail: float) -> dict[str, Any]:
    telling = [node for node in nodes if _tells(node)]
    drawn = list(nodes) if len(nodes) <= _MAX_TILES * detail else telling[: int(_MAX_TILES * detail)]
    told = [
        {"rank": item.rank, "node": node.node, "mark": item.mark.value, "detail": item.detail}
        for node in telling
        for item in node.ranks
        if item.mark in _TOLD
    ]
    told.sort(key=lambda item: (item["mark"] != "first", item["rank"]))
    counts = count_marks(nodes)
    return {
        "tiles": [
            {
                "node": node.node,
                "suspect": node.suspect,
                "silent": node.silent,
                "ranks": [(item.rank, item.mark.value, item.detail) for item in node.ranks],
            }
            for node in drawn
        ],
        "left_out": len(nodes) - len(drawn),
        "counts": [(mark.value, counts[mark]) for mark in Mark if counts.get(mark)],
        "told": told[:_MAX_TOLD],
        "told_left_out": max(0, len(told) - _MAX_TOLD),
        "nodes": len(nodes),
        "per_task": spec.launcher == "torchrun",
    }


def _tells(node: NodeMark) -> bool:
    return bool(node.suspect) or node.silent or any(item.mark in _TELLING for item in node.ranks)
