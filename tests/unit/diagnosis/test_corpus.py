"""The labelled logs: how good is the diagnosis? Prints the confusion table."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_file

from .conftest import DATA, Case


def diagnose_all(corpus: list[Case], rules: RuleSet, *, full: bool) -> list[tuple[Case, Diagnosis]]:
    return [
        (case, diagnose(case.facts() if full else case.short_facts(), [scan_file(case.log, rules)])) for case in corpus
    ]


def print_confusion(results: list[tuple[Case, Diagnosis]]) -> None:
    table = Counter((case.label["root_cause"], answer.cause) for case, answer in results)
    print(f"\n{'label':<26}{'diagnosis':<26}{'logs':>5}")
    for (label, cause), count in sorted(table.items()):
        print(f"{label:<26}{cause:<26}{count:>5}{'' if label == cause else '   <-- wrong'}")


def reliability(results: list[tuple[bool, float]]) -> list[tuple[float, int, float]]:
    """For each step of confidence its lower end, how many answers have it, and the share of them that is right."""
    table = []
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01)):
        part = [right for right, confidence in results if low <= confidence < high]
        if part:
            table.append((low, len(part), sum(part) / len(part)))
    return table


def test_confidence_means_something(corpus: list[Case], rules: RuleSet) -> None:
    """Answers of high confidence are right, on the labelled logs and on those of ours; prints the reliability table."""
    answers = [
        (answer.cause == case.label["root_cause"], answer.confidence)
        for full in (True, False)
        for case, answer in diagnose_all(corpus, rules, full=full)
    ]
    folder = DATA / "logs" / "failures"
    for case in json.loads((folder / "cases.json").read_text()):
        facts = Facts(state=case["state"], exit_code=case["exit_code"], signal=case["signal"])
        answer = diagnose(facts, [scan_file(folder / case["log"], rules)])
        answers.append((answer.cause == case["cause"], answer.confidence))
    table = reliability(answers)
    print(f"\n{'confidence from':<16}{'answers':>8}{'right':>8}")
    for low, count, right in table:
        print(f"{low:<16}{count:>8}{right:>8.1%}")
    for low, _, right in table:
        assert right >= low, "less often right than it says"


@pytest.mark.parametrize("full", [True, False], ids=["all-facts", "state-and-exit-code"])
def test_cause_family_action_and_rank(corpus: list[Case], rules: RuleSet, full: bool) -> None:
    results = diagnose_all(corpus, rules, full=full)
    print_confusion(results)
    count = len(results)
    assert count == 117
    right = sum(answer.cause == case.label["root_cause"] for case, answer in results)
    family = sum(answer.family == case.label["family"] for case, answer in results)
    assert right >= 0.97 * count
    assert family >= 0.99 * count
    for case, answer in results:
        if case.label["root_cause_rank"] is not None:
            assert answer.rank == case.label["root_cause_rank"], case.name
        if answer.cause == case.label["root_cause"]:
            assert (answer.action, answer.retryable) == (case.label["action"], case.label["retryable"]), case.name


@pytest.mark.parametrize("full", [True, False], ids=["all-facts", "state-and-exit-code"])
def test_never_wrong_in_the_dangerous_direction(corpus: list[Case], rules: RuleSet, full: bool) -> None:
    for case, answer in diagnose_all(corpus, rules, full=full):
        if not case.label["retryable"]:
            assert not answer.retryable, f"{case.name} would be retried as {answer.cause}"
        if case.label["root_cause"] == "no_failure":
            assert answer.cause == "no_failure", case.name


def test_the_line_shown_is_one_that_shows_the_cause(corpus: list[Case], rules: RuleSet) -> None:
    results = [(case, answer) for case, answer in diagnose_all(corpus, rules, full=True) if case.label["evidence_line"]]
    close = sum(
        answer.line is not None and min(abs(answer.line - line) for line in case.label["evidence_line"]) <= 2
        for case, answer in results
    )
    exact = sum(answer.line in case.label["evidence_line"] for case, answer in results)
    assert exact >= 0.9 * len(results)
    assert close >= 0.95 * len(results)


def test_no_rule_quotes_one_labelled_log(corpus: list[Case], rules: RuleSet) -> None:
    """A path, a host, an address, a job number or a time in a literal would be learning by heart."""
    invented = re.compile(r"/home/|/scratch/|node\d{2,}|\d{5,}|\d+\.\d+\.\d+\.\d+|\d\d:\d\d|user/")
    for rule in rules.rules:
        for words in rule.literals:
            for word in words:
                assert not invented.search(word), (rule.id, word)
