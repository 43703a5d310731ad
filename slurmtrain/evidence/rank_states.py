"""What companions wrote down of each rank in a hang: the state of its process and its step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json

STATES = "ranks-"  # in the launch's folder, with the node's name and .json


class RankState(NamedTuple):
    """One rank. A rank of a node that reported, without one, had no process any more."""

    node: str
    state: str  # the state letter of /proc
    step: int | None  # where the training tells it on each rank


def read_states(launch_folder: Path) -> Mapping[int, RankState]:
    """Rank → what the companions wrote down. What cannot be read is left out; never raises."""
    found: dict[int, RankState] = {}
    for path in sorted(launch_folder.glob(f"{STATES}*.json")):
        with contextlib.suppress(StoreError, OSError):
            report: dict[str, Any] = read_json(path) or {}
            rows = report.get("ranks", ())
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and isinstance(row.get("rank"), int):
                    step = row.get("step")
                    words = str(report.get("node", ""))[:100], str(row.get("state", ""))[:1]
                    found[row["rank"]] = RankState(*words, step if isinstance(step, int) else None)
    return found
