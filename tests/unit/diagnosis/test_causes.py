"""The table of causes is the taxonomy, and its advice helps."""

from __future__ import annotations

import json
import re

from slurmtrain.core.causes import ACTIONS, CAUSES, CLASSES, FAMILIES, RUNGS, get_cause

from .conftest import DATA

TAXONOMY = json.loads((DATA / "corpus" / "taxonomy.json").read_text())


def test_the_table_is_the_taxonomy() -> None:
    leaves = {leaf["leaf"]: leaf for leaf in TAXONOMY["leaves"]}
    assert set(CAUSES) == set(leaves)
    for name, leaf in leaves.items():
        cause = get_cause(name)
        assert (cause.family, cause.klass, cause.retryable, cause.action) == (
            leaf["family"],
            leaf["class"],
            leaf["retryable"],
            leaf["action"],
        )
    assert set(FAMILIES) == set(TAXONOMY["families"])
    assert set(ACTIONS) == set(TAXONOMY["actions"])
    assert set(CLASSES) == set(TAXONOMY["classes"])


def test_a_first_rung_agrees_with_the_action() -> None:
    allowed = {
        "requeue": {"in_place", "requeue"},
        "requeue-exclude-node": {"requeue_exclude"},
        "rollback-checkpoint": {"rollback"},
        "stop": {"stop"},
        "none": {"none"},
    }
    for cause in CAUSES.values():
        assert cause.first_rung in RUNGS
        assert cause.first_rung in allowed[cause.action], cause.name


def test_a_fault_of_the_machine_never_uses_the_users_budget() -> None:
    for cause in CAUSES.values():
        if cause.klass == "node-bad":
            assert cause.infrastructure, cause.name
        if cause.klass in ("permanent", "none"):
            assert not cause.infrastructure, cause.name


def test_every_advice_is_one_to_four_sentences() -> None:
    for cause in CAUSES.values():
        sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", cause.advice)
        assert 1 <= len(sentences) <= 4, cause.name
        assert cause.advice.endswith((".", ")")), cause.name
        assert not cause.summary.endswith("."), cause.name


def test_the_page_is_in_step() -> None:
    from slurmtrain.cli.causes_page import build_page

    page = DATA.parents[1] / "docs" / "causes.md"
    assert page.read_text("utf-8") == build_page()
