"""Logs of programs that did well, full of alarming words: no cause is ever given."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes, scan_file

from .conftest import DATA

LOGS = sorted((DATA / "logs" / "healthy").glob("*.log"))


def test_there_are_enough() -> None:
    assert len(LOGS) >= 40


@pytest.mark.parametrize("facts", [Facts(state="COMPLETED", exit_code=0), Facts()], ids=["completed", "no-facts"])
@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_no_cause(log: Path, facts: Facts, rules: RuleSet) -> None:
    answer = diagnose(facts, [scan_file(log, rules)])
    assert answer.cause == "no_failure", answer.sentence
    assert answer.action == "none"


@pytest.mark.parametrize("log", LOGS, ids=[log.stem for log in LOGS])
def test_a_time_limit_is_not_blamed_on_old_scares(log: Path, rules: RuleSet) -> None:
    """A healthy log that Slurm cut short: the survived scares must not turn into a cause that stops the run."""
    if log.stem in (
        "tf-startup-noise",
        "leaked-semaphore",
        "teardown-noise",
        "run-ddp-caught",
        "run-ray-ok",
        "hb-atexit-cuda",
    ):
        pytest.skip("its scares are at its very end")
    answer = diagnose(Facts(state="TIMEOUT", exit_code=0, last_output_age_s=20.0), [scan_file(log, rules)])
    assert answer.cause == "time_limit", answer.sentence


def test_no_line_of_printed_settings_is_evidence(rules: RuleSet) -> None:
    """Arguments and environments that programs print at their start: `find_unused_parameters` alone says nothing."""
    for line in (DATA / "logs" / "noise" / "settings.log").read_text().splitlines():
        found = [item for item in scan_bytes(line.encode(), rules).findings if item.kind in ("cause", "victim", "stop")]
        assert not found, (line, found[0].rule)
