"""Noticing that the log cannot be written: srun and slurmstepd then drop all output until the launch ends.

Tried on 22.05: after one failed write both go on without that output, also once there is room again. The training does
not notice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say

_LOOK_S = 10.0
_LEAST = 4096  # bytes: less takes no further page of a log


class LogRoom:
    """Looks at the file system of a launch's log now and then; says and records once that it is full. Never raises."""

    def __init__(self, log_file: Path, record: Record, launch: int) -> None:
        self._folder = log_file.parent
        self._record = record
        self._launch = launch
        self._next_look = 0.0
        self._told = False

    def look(self) -> None:
        """Called at every turn of the launch loop."""
        now = time.monotonic()
        if self._told or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return
        if found.f_bavail * found.f_frsize < _LEAST:
            self._told = True
            say("the file system of this log is full: what the training prints is lost; the training goes on")
            self._record.log_is_full(self._launch)
