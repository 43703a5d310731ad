"""The watcher's side of shipping: one process beside it sends what runs have left, one pass after the other.

What happens there never delays the watcher, and outlives it: an upload that takes an hour goes on while runs are
looked after.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.ops.shipping.ledger import read_state
from slurmtrain.ops.shipping.shipper import is_due
from slurmtrain.ops.shipping.start import start_for_store
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir, runs_of


@dataclass
class ShippingChild:
    """Starts the process when there is something to send and none runs."""

    store: Path
    _process: subprocess.Popen[bytes] | None = None
    _others: set[str] = field(default_factory=set)  # runs that have nothing to ship, or nothing any more

    def look(self) -> str:
        """Start it if it is wanted; why it could not be started, in words, or ""."""
        if self._process is not None and self._process.poll() is None:
            return ""
        try:
            if not any(self._is_due(run) for run in runs_of(self.store) if run.run_id not in self._others):
                return ""
            self._process = start_for_store(self.store)
        except (StoreError, OSError) as exc:
            return f"nothing is shipped: {exc}"
        return ""

    def wait(self, seconds: float) -> None:
        """For the end of the process, so long at most; it is left alone then."""
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return

    def _is_due(self, run: RunDir) -> bool:
        if not exists(run.ship):
            self._others.add(run.run_id)
            return False
        if is_due(run.path, time.time()):
            return True
        if read_state(run.ship).complete:
            self._others.add(run.run_id)
        return False
