"""Watchers of one store take turns.

Two at once do no harm, because decisions are published once and acts look first.
"""

from __future__ import annotations

from pathlib import Path

from slurmtrain.store import lease

_NAME = "watch.lease"


class Lease(lease.Lease):
    """This process's claim to look after a store."""

    def __init__(self, store: Path, seconds: float) -> None:
        super().__init__(store / _NAME, seconds)
