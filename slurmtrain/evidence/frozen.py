"""The collectors of a run, frozen with it at submission: the nodes need no installation of slurmtrain."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.evidence.collector import Collector, collector_from_dict
from slurmtrain.store.publish import read_json, to_json

COLLECTORS = "collectors.json"


def freeze_collectors(collectors: Sequence[Collector]) -> bytes:
    return to_json({"collectors": [collector.to_dict() for collector in collectors]})


def read_frozen_collectors(run_dir: Path) -> list[Collector]:
    """Those of a run; one that cannot be read is left out. Raises ``StoreError`` where the file cannot be read."""
    data = read_json(run_dir / COLLECTORS)
    rows = data.get("collectors") if data else None
    if not isinstance(rows, list):
        raise StoreError(f"{run_dir / COLLECTORS} is missing or damaged: no scene can be taken")
    found = []
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            found.append(collector_from_dict(row))
    return found
