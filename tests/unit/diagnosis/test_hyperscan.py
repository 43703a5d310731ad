"""With hyperscan the answers are the same as with `re`."""

from __future__ import annotations

import io
import random

import pytest

from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.fastscan import find_finder
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.scan import scan_log

from .conftest import Case

pytest.importorskip("hyperscan")


def test_every_literal_is_found_at_the_same_place(corpus: list[Case], rules: RuleSet) -> None:
    finder = find_finder(rules)
    assert finder is not None
    matcher = matcher_of(rules)
    for case in corpus:
        data = case.log.read_bytes()
        mine = {found.start() for found in matcher.filter.finditer(data.lower())}
        assert mine <= set(finder(data)), case.name


def test_the_same_findings(corpus: list[Case], rules: RuleSet) -> None:
    finder = find_finder(rules)
    source = random.Random(5)
    cases = [case.log.read_bytes() for case in corpus]
    for number in range(60):
        data = b"".join(source.choice(cases) for _ in range(source.randrange(1, 6)))
        if number % 3 == 0:
            data = data.replace(b"\n", b" ", len(data) // 300)
        slow = scan_log(io.BytesIO(data), rules, name="log")
        fast = scan_log(io.BytesIO(data), rules, name="log", finder=finder)
        assert [(item.rule, item.line, item.rank, item.count, item.text) for item in slow.findings] == [
            (item.rule, item.line, item.rank, item.count, item.text) for item in fast.findings
        ]
        assert (slow.lines, slow.progress) == (fast.lines, fast.progress)


def test_small_logs_do_without(rules: RuleSet) -> None:
    assert find_finder(rules, 1000) is None
