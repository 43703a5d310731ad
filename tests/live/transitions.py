"""Each run's changes of state, as its journal has them, are those that docs/states.md allows, and say who and why."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from slurmtrain.core.run import fold
from slurmtrain.store.journal import read_journal

PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def read_allowed(page: Path = PAGE) -> dict[str, set[str]]:
    """State → states that may follow it."""
    section = page.read_text(encoding="utf-8").split("## What may follow what")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z][^|]*) \| ([^|]*) \|$", section, flags=re.MULTILINE)
    return {one: set(re.findall(r"[A-Z]\w+", after)) for froms, after in rows for one in froms.split(", ")}


def check_transitions(store: Path) -> list[str]:
    """Sentences about what is wrong in the runs of a store, or of stores one level below it."""
    allowed = read_allowed()
    found = []
    for journal in sorted([*store.glob("runs/*/journal"), *store.glob("*/runs/*/journal")]):
        history = fold(read_journal(journal, skip_unreadable=True)).history
        name = journal.parent.name
        found += [
            f"{name}: {before.state.value} -> {after.state.value} ({after.who}: {after.why}) after {before.why}"
            for before, after in pairwise(history)
            if after.state.value not in allowed[before.state.value]
        ]
        found += [f"{name}: {change} tells not who, when and why" for change in history if not _is_told(change)]
    return found


def _is_told(change: object) -> bool:
    return all(getattr(change, name) for name in ("at", "who", "why"))
