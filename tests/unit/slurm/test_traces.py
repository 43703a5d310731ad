"""The Slurm in memory shows what real Slurms showed: traces in tests/data/slurm/<version>/traces.

Compared one by one, in order. Left out on either side are only looks that come and go faster than a real squeue is
asked: COMPLETING of an end that nobody resists, and PENDING with a reason that the next scheduling changes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.testing.stage import QUICK, MemoryStage
from slurmtrain.testing.traces import SCENARIOS, Look, record

DATA = Path(__file__).parents[2] / "data" / "slurm"
TRACES = sorted(DATA.glob("*/traces/*.json"))
PASSING_REASONS = {"", "Resources", "Priority", "BeginTime", "NonZeroExitCode"}


def is_passing(look: Look) -> bool:
    return look["state"] == "COMPLETING" or (look["state"] == "PENDING" and look["reason"] in PASSING_REASONS)


def align(real: list[Look], double: list[Look]) -> list[str]:
    """Differences between two traces; passing looks may be missing on either side."""
    differences = []
    left, right = list(real), list(double)
    while left or right:
        if left and right and left[0] == right[0]:
            left.pop(0)
            right.pop(0)
        elif right and is_passing(right[0]) and (not left or right[0] not in left[:3]):
            right.pop(0)
        elif left and is_passing(left[0]):
            left.pop(0)
        else:
            return [f"real: {left[:1]}", f"memory: {right[:1]}"]
    return differences


def executions(rows: list[Look]) -> list[Look]:
    """Rows of executions that began: the row of the one to come appears whenever slurmdbd gets to it."""
    return [row for row in rows if row["state"] != "PENDING"]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parts[-3]}-{path.stem}")
def test_memory_replays(path: Path, tmp_path: Path) -> None:
    real: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    major, minor = path.parts[-3].split(".")
    stage = MemoryStage(replace(QUICK, version=(int(major), int(minor))), directory=tmp_path)
    double = record(stage, SCENARIOS[path.stem])
    assert align(real["looks"], double["looks"]) == []
    assert executions(double["rows"]) == executions(real["rows"])


@pytest.mark.parametrize("version", ["22.05", "25.11"])
def test_every_scenario_was_recorded(version: str) -> None:
    assert {path.stem for path in DATA.glob(f"{version}/traces/*.json")} == set(SCENARIOS)


def test_a_difference_is_found() -> None:
    """The comparison itself: a missed cancel, a wrong restart count."""
    path = DATA / "22.05" / "traces" / "requeued_and_cancelled_at_once.json"
    looks = json.loads(path.read_text(encoding="utf-8"))["looks"]
    assert align(looks, looks) == []
    assert align(looks, looks[:-1]) != []
    assert align(looks, [{**look, "restarts": 0} for look in looks]) != []
