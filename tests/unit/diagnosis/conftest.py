"""The bundled rules, read once, and the labelled logs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.plugins.rulepacks import load_rules

DATA = Path(__file__).resolve().parents[2] / "data"


@dataclass(frozen=True)
class Case:
    """One labelled log of the corpus."""

    name: str
    log: Path
    label: dict[str, Any]

    def facts(self) -> Facts:
        """Everything that the label's Slurm block tells."""
        slurm = self.label["slurm"]
        derived = slurm.get("derived_exit_code")
        return Facts(
            state=slurm["state"],
            exit_code=slurm.get("exit_code"),
            signal=slurm.get("signal"),
            derived_exit_code=int(derived.split(":")[0]) if derived else None,
            derived_signal=int(derived.split(":")[1]) if derived else None,
            elapsed_s=seconds(slurm.get("elapsed")),
            time_limit_s=seconds(slurm.get("timelimit")),
            last_output_age_s=slurm.get("last_output_age_s"),
            failed_nodes=(slurm["failed_node"],) if slurm.get("failed_node") else (),
            nnodes=slurm.get("nnodes"),
            cancelled_by=str(slurm["cancelled_by_uid"]) if "cancelled_by_uid" in slurm else None,
        )

    def short_facts(self) -> Facts:
        """Only what the command line's documented options carry."""
        slurm = self.label["slurm"]
        return Facts(state=slurm["state"], exit_code=slurm.get("exit_code"), signal=slurm.get("signal"))


def seconds(text: str | None) -> float | None:
    if text is None:
        return None
    days, _, clock = text.rpartition("-")
    hours, minutes, rest = (int(part) for part in clock.split(":"))
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + rest


def corpus_cases() -> list[Case]:
    folders = sorted((DATA / "corpus" / "dev").iterdir())
    return [Case(item.name, item / "log.txt", json.loads((item / "case.json").read_text())) for item in folders]


@pytest.fixture(scope="session")
def rules() -> RuleSet:
    return load_rules()


@pytest.fixture(scope="session")
def corpus() -> list[Case]:
    return corpus_cases()
