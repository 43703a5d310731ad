"""Logs written from how programs print errors: at least three for each cause, of different programs and versions."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_file

from .conftest import DATA

FOLDER = DATA / "logs" / "failures"
REAL = DATA / "logs" / "real"
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
RUN: list[dict[str, Any]] = json.loads((REAL / "cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["log"] for case in CASES])
def test_the_cause_is_found(case: dict[str, Any], rules: RuleSet) -> None:
    facts = Facts(state=case["state"], exit_code=case["exit_code"], signal=case["signal"])
    answer = diagnose(facts, [scan_file(FOLDER / case["log"], rules)])
    assert answer.cause == case["cause"], answer.sentence
    if case["rank"] is not None:
        assert answer.rank == case["rank"]


@pytest.mark.parametrize("case", RUN, ids=[case["log"] for case in RUN])
def test_the_cause_of_programs_that_were_run(case: dict[str, Any], rules: RuleSet) -> None:
    """torch, torchrun, JAX, Keras, transformers, Lightning and ray really failed like this on CPUs."""
    facts = Facts(state=case["state"], exit_code=case["exit_code"], signal=case["signal"])
    answer = diagnose(facts, [scan_file(REAL / case["log"], rules)])
    assert answer.cause == case["cause"], answer.sentence
    if case["rank"] is not None:
        assert answer.rank == case["rank"]


def test_each_cause_has_three_logs() -> None:
    counts = Counter(case["cause"] for case in CASES)
    missing = {name: counts[name] for name in CAUSES if name != "no_failure" and counts[name] < 3}
    assert not missing
