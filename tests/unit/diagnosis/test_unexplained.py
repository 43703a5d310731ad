"""An unknown log: the lines to look at."""

from __future__ import annotations

from slurmtrain.core.diagnosis.unexplained import find_unexplained
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes


def test_alarming_lines_come_first_and_else_the_last_ones(rules: RuleSet) -> None:
    log = scan_bytes(b"hello\nsolver: ERROR 77 flux capacitor empty\nstopping\n", rules)
    assert find_unexplained([log]) == [("log", 2, "solver: ERROR 77 flux capacitor empty")]
    plain = scan_bytes(b"one\ntwo\nthree\nfour\n", rules)
    assert [line for _, line, _ in find_unexplained([plain])] == [2, 3, 4]
    assert find_unexplained([scan_bytes(b"", rules)]) == []
