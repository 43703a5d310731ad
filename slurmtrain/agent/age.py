"""A warning when the newest checkpoint is older than it should be while the training goes on: what a failure costs."""

from __future__ import annotations

import time

from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.checkpoints.find import find_newest
from slurmtrain.core.spec import Checkpoint
from slurmtrain.core.timetext import say_duration
from slurmtrain.store.rundir import RunDir

_LONGEST_LOOK_S, _SHORTEST_LOOK_S = 600.0, 5.0


class AgeWatch:
    """Of one launch. Its training time counts: a checkpoint from before it ages from its start on."""

    def __init__(self, run: RunDir, checkpoint: Checkpoint, launch: int, record: Record) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._launch = launch
        self._record = record
        self._limit = float(checkpoint.max_age_s)
        self._interval_s = min(_LONGEST_LOOK_S, max(_SHORTEST_LOOK_S, self._limit / 20))
        self._started_at = time.time()
        self._next_look = time.monotonic() + self._interval_s
        self._told = False

    def look(self) -> None:
        """Say once that it is too old, and that a new one came. Lists the folder of checkpoints now and then."""
        if not self._limit or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._interval_s
        newest = find_newest(self._run.path, self._checkpoint)
        age = time.time() - max(self._started_at, newest.modified if newest is not None else 0.0)
        if age < self._limit:
            if self._told and newest is not None:
                self._told = False
                self._record.launch_noticed(self._launch, "checkpoint_age", f"{newest.path.name} was saved", over=True)
            return
        if not self._told:
            self._told = True
            words = self._words(newest.path.name if newest is not None else "", age)
            say(f"warning: {words}")
            self._record.launch_noticed(self._launch, "checkpoint_age", words)

    def _words(self, newest: str, age: float) -> str:
        lost = "a failure now would lose all that was learnt since"
        if newest:
            return f"no checkpoint for {say_duration(age)} (the newest is {newest}): {lost}"
        where = f"{self._checkpoint.pattern} in {self._checkpoint.dir}"
        return f"no checkpoint {say_duration(age)} after the start ({where}): {lost}"
