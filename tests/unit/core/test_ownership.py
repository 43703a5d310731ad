"""One owner for each word of Slurm, and the table of endings in step with the rules and with the live tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from slurmtrain.core.endings import ROWS, Row
from slurmtrain.core.jobstate import BaseState, StateFlag, is_terminal, parse_job_state
from slurmtrain.core.ownership import RULES, Owner, find_rule, may_decide

ROOT = Path(__file__).parents[3]
WORDS = [*BaseState.__members__, *StateFlag.__members__]


@pytest.mark.parametrize("word", WORDS)
def test_each_word_of_slurm_has_a_rule_of_its_own(word: str) -> None:
    state = parse_job_state(word)
    fitting = [rule for rule in RULES if state.flags & rule.flags or (not state.flags and state.base in rule.bases)]
    assert len(fitting) == 1, [rule.name for rule in fitting]
    assert find_rule(state) is fitting[0]


@pytest.mark.parametrize("requeue", [False, True])
@pytest.mark.parametrize("word", WORDS)
def test_the_watcher_owns_exactly_the_ends(word: str, requeue: bool) -> None:
    state = parse_job_state(word)
    assert may_decide(Owner.WATCHER, state, requeue=requeue) is is_terminal(state, requeue=requeue)


def test_only_exactly_running_is_the_agents() -> None:
    assert [word for word in WORDS if may_decide(Owner.AGENT, parse_job_state(word))] == ["RUNNING"]
    assert not may_decide(Owner.AGENT, parse_job_state("RUNNING"), later=True)


@pytest.mark.parametrize("word", ["", "SOMETHING_NEW", "R"])
def test_an_unknown_word_is_nobodys(word: str) -> None:
    rule = find_rule(parse_job_state(word))
    assert (rule.owner, rule.passes, rule.final) == (Owner.NOBODY, False, False)


def test_only_a_cancel_is_final() -> None:
    assert [word for word in WORDS if find_rule(parse_job_state(word)).final] == ["CANCELLED"]


def test_a_job_that_slurm_has_forgotten_is_the_watchers() -> None:
    assert may_decide(Owner.WATCHER, None)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_each_row_says_what_the_rules_say(row: Row) -> None:
    state = parse_job_state(row.state) if row.state else None
    assert find_rule(state, requeue=row.requeue, later=row.later).owner is row.owner


def test_each_row_is_there_once() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)
    assert len({row.what for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.key)
def test_each_row_names_a_live_test(row: Row) -> None:
    name, _, function = row.test.partition("::")
    tree = ast.parse((ROOT / "tests" / "live" / name).read_text("utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_word_occurs_in_the_table() -> None:
    """Slurm's base states, those of a job that is over and those of one that is not."""
    told = {row.state for row in ROWS}
    shown_by_flag = {"COMPLETED", "OUT_OF_MEMORY"}  # the end of a job whose agent has decided
    assert set(BaseState.__members__) - told - shown_by_flag == set()


def test_the_page_is_in_step() -> None:
    from slurmtrain.cli.ownership_page import build_page

    assert (ROOT / "docs" / "ownership.md").read_text("utf-8") == build_page()
