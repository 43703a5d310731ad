"""Whether a later attempt of the run has begun: then this execution is a ghost and must end itself.

A node whose slurmd died keeps its processes while Slurm gives the job to other nodes; two executions of one run would
then train side by side and overwrite each other's checkpoints.
"""

from __future__ import annotations

import time

from slurmtrain.ops.claim import came_before
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir

_HURRIED_S = 2.0


class Fence:
    """Looks for the directory of the next attempt, not more often than every ``interval_s``."""

    def __init__(self, run: RunDir, attempt: int, interval_s: float) -> None:
        self._run, self._attempt, self._next = run, run.attempt(attempt), attempt + 1
        self._interval_s = interval_s
        self._next_look = 0.0
        self._closed = False

    def hurry(self) -> None:
        """Look more often from now on: something is wrong."""
        self._interval_s = min(self._interval_s, _HURRIED_S)
        self._next_look = min(self._next_look, time.monotonic() + self._interval_s)

    def look_now(self) -> bool:
        """Look at once, whatever the interval says."""
        self._next_look = 0.0
        return self.closed

    @property
    def closed(self) -> bool:
        """True once a later attempt exists; it stays so."""
        now = time.monotonic()
        if not self._closed and now >= self._next_look:
            self._next_look = now + self._interval_s
            self._closed = self._is_overtaken()
        return self._closed

    def _is_overtaken(self) -> bool:
        """An attempt with a later number may be of an earlier execution, which came late to its gate and left."""
        while exists((attempt := self._run.attempt(self._next)).path):
            if not came_before(attempt.read_owner() or {}, self._attempt.read_owner() or {}):
                return True
            self._next += 1
        return False
