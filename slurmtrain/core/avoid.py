"""Which nodes a run keeps away from, since when and why: what its own decisions said, until it is too old."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurmtrain.core.constraint import Part, can_run
from slurmtrain.core.decision import Decision
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Retry


@dataclass(frozen=True, slots=True)
class Avoided:
    """One node. ``since`` is the newest decision that names it (seconds since the epoch), ``until`` its end."""

    node: str
    since: float
    until: float
    cause: str
    reason: str


def ever_avoided(run: Run) -> set[str]:
    """Every node that a decision of this run has kept out."""
    return {node for _, decision in _decisions(run) for node in decision.exclude}


def avoided_now(run: Run, retry: Retry, now: float, deciding: Decision | None = None) -> list[Avoided]:
    """The nodes to keep out at this moment, the newest evidence first. ``deciding`` may not be in the journal yet."""
    if not retry.exclude_nodes:
        return []
    found: dict[str, Avoided] = {}
    made = [*_decisions(run), *([(now, deciding)] if deciding is not None else [])]
    for at, decision in made:
        for node in decision.exclude:
            found[node] = Avoided(node, at, at + retry.exclude_for_s, decision.cause, decision.reason)
    return sorted((a for a in found.values() if a.until > now), key=lambda a: -a.since)


def choose_excluded(
    avoided: Sequence[Avoided], *, needed: set[str], parts: Sequence[Part], known: set[str], theirs: set[str]
) -> list[str]:
    """Those of ``avoided`` that can be kept out, as many as the job can spare, the newest evidence first.

    Never one that the request names (``needed``), nor one that Slurm does not know any more (it would refuse the whole
    list). ``parts`` are the job's components with the nodes that could run each; ``theirs`` are the nodes that its
    user keeps out.
    """
    left = {node for part in parts for node in part.nodes} - theirs
    wanted = sum(part.wanted for part in parts)
    chosen = []
    for node in (a.node for a in avoided):
        if node in needed or node in theirs or node not in known:
            continue
        rest = left - {node}
        if len(rest) >= wanted and all(can_run(part, rest) for part in parts):
            left = rest
            chosen.append(node)
    return chosen


def _decisions(run: Run) -> Iterator[tuple[float, Decision]]:
    for attempt in run.attempts:
        if attempt.decision is not None:
            yield attempt.decided_at, attempt.decision
