"""Nodes that a run keeps away from: from its decisions, until they are too old, as many as can be spared."""

from __future__ import annotations

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.avoid import avoided_now, choose_excluded, ever_avoided
from slurmtrain.core.constraint import Part
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Retry

DAY = 86400.0


def requeue(*nodes: str, cause: str = "gpu_lost") -> Decision:
    return Decision(Action.REQUEUE, RunState.PENDING, cause, f"because of {cause}", exclude=nodes)


def run(*made: tuple[float, Decision]) -> Run:
    return fold(
        ev.Decided(at=at, who="agent", attempt=n, decision=decision_to_dict(d)) for n, (at, d) in enumerate(made)
    )


def test_the_newest_evidence_comes_first_and_the_old_goes() -> None:
    state = run((0, requeue("n1")), (DAY, requeue("n2", "n3")), (DAY + 5, requeue("n1", cause="node_fail")))
    found = avoided_now(state, Retry(), DAY + 10)
    assert [(a.node, a.cause) for a in found] == [("n1", "node_fail"), ("n2", "gpu_lost"), ("n3", "gpu_lost")]
    assert [a.node for a in avoided_now(state, Retry(), 2 * DAY + 1)] == ["n1"]
    assert avoided_now(state, Retry(), 3 * DAY) == []
    assert ever_avoided(state) == {"n1", "n2", "n3"}
    assert avoided_now(state, Retry(exclude_nodes=False), DAY) == []
    assert [a.node for a in avoided_now(run(), Retry(), 5.0, requeue("n9"))] == ["n9"], "not in the journal yet"


ALL = {f"n{i}" for i in range(1, 6)}


@pytest.mark.parametrize(
    ("needed", "usable", "theirs", "wanted", "chosen"),
    [
        (set(), ALL, set(), 2, ["n1", "n2", "n3"]),
        (set(), ALL, set(), 3, ["n1", "n2"]),  # the newest evidence first
        (set(), ALL, set(), 5, []),
        (set(), ALL, {"n5"}, 3, ["n1"]),  # what its user keeps out can be spared by nobody any more
        (set(), ALL, {"n1"}, 2, ["n2", "n3"]),
        ({"n1", "n2"}, ALL, set(), 2, ["n3"]),
        (set(), {"n3", "n4", "n5"}, set(), 3, ["n1", "n2"]),  # down anyway: costs nothing
        (set(), set(), set(), 1, []),
    ],
)  # fmt: skip
def test_never_more_than_can_be_spared(
    needed: set[str], usable: set[str], theirs: set[str], wanted: int, chosen: list[str]
) -> None:
    avoided = avoided_now(run((3, requeue("n1")), (2, requeue("n2")), (1, requeue("n3"))), Retry(), 10)
    part = Part(dict.fromkeys(usable, frozenset()), wanted)
    found = choose_excluded(avoided, needed=needed, parts=[part], known=ALL, theirs=theirs)
    assert found == chosen


def test_a_node_that_left_the_cluster_is_not_named() -> None:
    """Slurm refuses a whole list for one unknown name."""
    avoided = avoided_now(run((3, requeue("gone", "n1"))), Retry(), 10)
    part = Part(dict.fromkeys(ALL, frozenset()), 1)
    assert choose_excluded(avoided, needed=set(), parts=[part], known=ALL, theirs=set()) == ["n1"]
