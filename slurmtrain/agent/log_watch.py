"""What is done about the log while a launch runs: marks of when it had which size, and a word when it is full.

Tried on 22.05: after one failed write srun and slurmstepd drop all output until the launch ends, also once there is
room again. The training does not notice.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.logs.times import LogTimes

_LOOK_S = 10.0
_LEAST = 4096  # bytes: less takes no further page of a log


class LogWatch:
    """Looks at one launch's logs now and then. Never raises."""

    def __init__(self, launch: LaunchProcess, folder: Path, record: Record) -> None:
        self._folder = launch.log_file.parent
        self._record = record
        self._launch = launch
        self._times = LogTimes(folder, launch.sizes)
        self._next_look = 0.0
        self._told = False

    def look(self) -> None:
        """Called at every turn of the launch loop."""
        now = time.monotonic()
        self._times.look(now)
        self._record.catch_up()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return
        self._launch.log_is_full = found.f_bavail * found.f_frsize < _LEAST
        if self._launch.log_is_full and not self._told:
            self._told = self._launch.log_was_full = True
            say("the file system of this log is full: what the training prints is lost; the training goes on")
            self._record.log_is_full(self._launch.number)
