"""Node list expressions, checked against ``scontrol show hostnames`` where it was run, and against hostile text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.nodeset import MAX_NODES, expand_nodes, fold_nodes, join_nodes, subtract_nodes


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("a-[001-003]-x", ["a-001-x", "a-002-x", "a-003-x"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[01-02],login1", ["r1n01", "r1n02", "r2n01", "r2n02", "login1"]),
        ("n2,n1,n[1-2]", ["n2", "n1"]),
        ("gpu-h100-07.cluster.local", ["gpu-h100-07.cluster.local"]),
        ("", []),
        ("(null)", []),
        ("None assigned", []),
    ],
)
def test_expand(expression: str, names: list[str]) -> None:
    assert expand_nodes(expression) == names


@pytest.mark.parametrize(
    "hostile",
    [
        "n[1-999999999]", "n[1-99999999999999999999]", "n[1-60000]x[1-60000]", "a[1-300]b[1-300]c[1-300]d[1-300]",
        "n[1-40000],m[1-40000]", "n[", "n]", "n]1[", "n[[1]]", "n[2-1]", "n[]", "n[1-]", "n[-1]", "n[a-b]", "n1,,n2",
        ",",         "n1;rm -rf /", "$(id)", "n 1", "n\n1", "n[1-2]\x00", "ñ1", "../n1", "n[１-２]",
    ],
)  # fmt: skip
def test_hostile_text_is_refused_at_once(hostile: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError) as caught:
        expand_nodes(hostile)
    assert time.monotonic() - began < 1
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_the_bound_is_exact() -> None:
    assert len(expand_nodes(f"n[1-{MAX_NODES}]")) == MAX_NODES
    with pytest.raises(ValueError, match="more than"):
        expand_nodes(f"n[0-{MAX_NODES}]")


@pytest.mark.parametrize(
    ("names", "expression"),
    [
        (["n3", "n1", "n2", "n7"], "n[1-3,7]"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"),
        (["n9", "n10"], "n[9-10]"),
        (["n1"], "n1"),
        (["n001", "n1"], "n001,n1"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["a-1-x", "a-2-x"], "a-1-x,a-2-x"),
        (["12", "13"], "12,13"),
        ([], ""),
    ],
)
def test_fold(names: list[str], expression: str) -> None:
    assert fold_nodes(names) == expression


def test_fold_refuses_what_is_no_node_name() -> None:
    with pytest.raises(ValueError, match="no node name"):
        fold_nodes(["n1", "n2 -p x"])


def test_subtract_and_join() -> None:
    assert subtract_nodes("n[1-9]", "n[2-3,9-99],m1") == "n[1,4-8]"
    assert subtract_nodes("n[1-2]", "n[1-2]") == ""
    assert join_nodes("n1,x", "", "n[2-3]", "(null)") == "n[1-3],x"


names = st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}[a-z]?[0-9]{0,3}", fullmatch=True)


@given(st.lists(names, max_size=30))
def test_folding_loses_nothing(some: list[str]) -> None:
    assert set(expand_nodes(fold_nodes(some))) == set(some)


@given(st.text(alphabet="n[]-,0123456789x", max_size=40))
def test_anything_expands_or_is_refused(noise: str) -> None:
    try:
        expand_nodes(noise, limit=1000)
    except ValueError:
        return
