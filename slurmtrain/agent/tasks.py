"""The tasks of a launch on this node, watched from beside: whether their slurmstepd still stands above them.

A slurmstepd that was killed (by the kernel for memory, by a person) leaves its tasks alive under proctrack/cgroup; srun
waits for them for ever, and so would the other ranks (22.05, tried). Tasks that print die of it at once (SIGPIPE).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.agent.cgroup import find_step_cgroup
from slurmtrain.agent.companion_events import GONE, LOST
from slurmtrain.agent.processes import Process, parent_of, start_ticks

_STEPD = "slurmstepd"
_MAX_DEPTH = 50


@dataclass(frozen=True, slots=True)
class _Task:
    process: Process
    stepd: int
    stepd_ticks: int | None

    @property
    def alive(self) -> bool:
        return start_ticks(self.process.pid) == self.process.start_ticks

    @property
    def has_stepd(self) -> bool:
        return start_ticks(self.stepd) == self.stepd_ticks


class TaskWatch:
    """Looks at most every ``interval_s``. ``find`` gives the launch's processes on this node.

    ``find_cgroup`` gives the folder that slurmstepd removes before it ends in the ordinary way.
    """

    def __init__(
        self,
        find: Callable[[], list[Process]],
        interval_s: float,
        find_cgroup: Callable[[str], Path | None] = find_step_cgroup,
    ) -> None:
        self._find = find
        self._find_cgroup = find_cgroup
        self._interval_s = interval_s
        self._next_look = 0.0
        self._tasks: list[_Task] = []
        self._ended = False  # seen without tasks once: slurmstepd had time to end after them

    def look(self) -> Iterator[tuple[str, str, list[Process]]]:
        """(event, launch, processes to end) for what became of the tasks since the last look."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._interval_s
        if not self._tasks:
            self._tasks = list(_find_tasks(self._find()))  # the next launch has begun, or will
            return
        first = self._tasks[0]
        alive = [task for task in self._tasks if task.alive]
        if any(not task.has_stepd for task in alive):
            yield LOST, first.process.launch, [p for p in self._find() if p.launch == first.process.launch]
            self._tasks = []
        elif alive:
            self._tasks = alive
        elif not self._ended:
            self._ended = True
        else:
            yield LOST if self._died_with_them(first) else GONE, first.process.launch, []
            self._tasks, self._ended = [], False

    def _died_with_them(self, task: _Task) -> bool:
        """slurmstepd is gone and has not cleaned up: srun will never hear how its tasks ended."""
        if task.has_stepd or not task.process.step.isdigit():
            return False
        folder = self._find_cgroup(task.process.step)
        return folder is not None and folder.is_dir()


def _find_tasks(processes: list[Process]) -> Iterator[_Task]:
    """Processes directly below a slurmstepd, or below something of somebody else's (a container's starter) that is."""
    ours = {process.pid for process in processes}
    for process in processes:
        stepd = _find_stepd(process.parent) if process.parent not in ours else None
        if stepd is not None:
            yield _Task(process, stepd, start_ticks(stepd))


def _find_stepd(pid: int) -> int | None:
    for _ in range(_MAX_DEPTH):
        if pid <= 1:
            return None
        try:
            if Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip() == _STEPD:
                return pid
        except OSError:
            return None
        pid = parent_of(pid)
    return None
