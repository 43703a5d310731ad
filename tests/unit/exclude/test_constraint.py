"""What nodes ``--constraint`` can do without: the examples of man sbatch, and texts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.constraint import Part, can_run

NODES = {
    "n1": frozenset({"a100", "ib", "rack1"}),
    "n2": frozenset({"a100", "ib", "rack1"}),
    "n3": frozenset({"a100", "rack2"}),
    "n4": frozenset({"h100", "ib", "rack2"}),
    "n5": frozenset({"h100", "rack2"}),
    "n6": frozenset(),
}


def meets(constraint: str, wanted: int, *without: str) -> bool:
    return can_run(Part(NODES, wanted, constraint), set(NODES) - set(without))


@pytest.mark.parametrize(
    ("constraint", "most"),
    [
        ("", 6), ("  ", 6), ("a100", 3), ("'a100'", 3), ("a100&ib", 2), ("a100,ib", 2), ("a100|h100", 5),
        ("nowhere", 0), ("a100&(ib|rack2)", 3), ("h100|a100&ib", 3), ("(h100|a100)&ib", 3), ("[rack1|rack2]", 3),
        ("ib&[rack1|rack2]", 2), ("[a100|h100]&rack2", 2), ("a100*2", 6), ("a100*4", 0),
        ("[rack1*2&rack2*2]", 6), ("[rack1*2&rack2*4]", 0),
        ("(rack1*2&rack2*2)", 6), ("ib&a100*2", 3), ("(a100&ib)*2", 6), ("(a100&ib)*3", 0),
    ],
)  # fmt: skip
def test_how_many_nodes_a_job_may_have(constraint: str, most: int) -> None:
    assert [wanted for wanted in range(1, 8) if meets(constraint, wanted)] == list(range(1, most + 1))


def test_a_node_that_does_not_fit_is_not_missed_and_the_last_that_fits_is() -> None:
    assert meets("a100&ib", 2, "n3", "n4", "n5", "n6")
    assert not meets("a100&ib", 2, "n1")
    assert meets("[rack1|rack2]", 3, "n1", "n2"), "all of the other rack are left"
    assert not meets("[rack1|rack2]", 3, "n1", "n3")
    assert not meets("rack1*2", 3, "n2"), "four nodes are left, but one of rack1 alone"


@pytest.mark.parametrize("text", ["a&", "&a", "(a", "a)", "[a", "a]", "a*", "*2", "a||b", "a*2|b*2", "(" * 5000, "a b"])
def test_what_cannot_be_read_spares_no_node(text: str) -> None:
    assert not meets(text, 1)


@given(st.text("ab&|()[]*2, ", max_size=40))
def test_never_raises_and_more_nodes_are_never_worse(text: str) -> None:
    nodes = {"x": frozenset("a"), "y": frozenset("b"), "z": frozenset("ab")}
    part = Part(nodes, 2, text)
    if can_run(part, {"x", "z"}):
        assert can_run(part, nodes)
