"""Waiting for the end of runs: by looking at their journals, and now and then at Slurm, once for all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurmtrain.core.decision import RunState
from slurmtrain.ops.status import WATCH_ONCE, RunStatus, Sight, build_status, is_cancelled, see_jobs
from slurmtrain.ops.timeline import RunView, read_view
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import RunDir

_SHORTEST_S, _LONGEST_S = 1.0, 5.0  # between looks at the journals
_REREAD_S = 15.0  # network file systems may show old sizes: read an unchanged journal all the same
Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Waited:
    """How it ended. ``open_runs`` are those that had not ended; then one of the other two says why."""

    rows: tuple[RunStatus, ...]
    open_runs: tuple[str, ...] = ()
    timed_out: bool = False
    unreachable: str = ""

    @property
    def all_completed(self) -> bool:
        return all(row.state is RunState.COMPLETED for row in self.rows)


@dataclass
class Wait:
    """Waits until all runs have ended. ``tell`` gets a run's id and a sentence when there is news.

    ``slurm_s`` is the time between two questions to Slurm; after ``unreachable_s`` without an answer waiting ends.
    """

    runs: Sequence[RunDir]
    slurm: SlurmClient | None
    timeout_s: float | None = None
    or_held: bool = False
    slurm_s: float = 30.0
    unreachable_s: float = 900.0
    tell: Callable[[str, str], None] = field(default=lambda _run, _text: None)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._views: dict[str, RunView] = {}
        self._signatures: dict[str, tuple[Signature, float]] = {}
        self._told: dict[str, str] = {}
        self._cancelled: dict[str, Sight] = {}
        self._silent_since: float | None = None
        self._problem = ""

    def until_ended(self) -> Waited:
        """Blocks; may be interrupted at any time."""
        begun = self.clock()
        asked_at = -1e9
        pause = _SHORTEST_S
        while True:
            changed = self._read_journals()
            pending = [view for view in self._views.values() if not self._is_over(view)]
            if not pending:
                return Waited(self._rows())
            now = self.clock()
            if self.timeout_s is not None and now - begun >= self.timeout_s:
                return self._gave_up(pending, timed_out=True)
            if now - asked_at >= self.slurm_s:
                asked_at = now
                self._ask_slurm(pending)
                if self._silent_since is not None and now - self._silent_since >= self.unreachable_s:
                    return self._gave_up(pending, timed_out=False)
            pause = _SHORTEST_S if changed else min(_LONGEST_S, pause * 1.2)
            left = pause if self.timeout_s is None else min(pause, begun + self.timeout_s - now)
            self.sleep(max(0.01, left))

    def _is_over(self, view: RunView) -> bool:
        if view.state.ended or view.run.run_id in self._cancelled:
            return True
        return self.or_held and view.state.state is RunState.HELD

    def _read_journals(self) -> bool:
        """Read what changed; whether any run came to another state."""
        changed = False
        for run in self.runs:
            before = self._views.get(run.run_id)
            if before is not None and (before.state.ended or not self._has_changed(run)):
                continue
            view = self._views[run.run_id] = read_view(run)
            if before is None or before.state.state is not view.state.state:
                changed = True
                if before is not None or self._is_over(view):
                    self.tell(run.run_id, self._news(view))
        return changed

    def _news(self, view: RunView) -> str:
        row = build_status(view, Sight(), time.time())
        return f"{row.state.value}" + (f": {row.reason}" if row.reason else "")

    def _has_changed(self, run: RunDir) -> bool:
        signature, now = _signature(run), self.clock()
        known = self._signatures.get(run.run_id)
        if known is not None and known[0] == signature and now - known[1] < _REREAD_S:
            return False
        self._signatures[run.run_id] = (signature, now)
        return True

    def _ask_slurm(self, pending: Sequence[RunView]) -> None:
        sights, problem = see_jobs(pending, self.slurm)
        if problem:
            self._problem = problem
            if self._silent_since is None:
                self._silent_since = self.clock()
                self.tell("", f"{problem}; waiting goes on")
            return
        self._silent_since = None
        for view in pending:
            sight = sights.get(view.run.run_id, Sight())
            if is_cancelled(sight.record):
                self._cancelled[view.run.run_id] = sight
            row = build_status(view, sight, time.time())
            never = row.waiting is not None and row.waiting.helps is not True
            if row.reason and (never or WATCH_ONCE in row.reason) and self._told.get(row.run_id) != row.reason:
                self._told[row.run_id] = row.reason
                self.tell(row.run_id, row.reason)

    def _rows(self) -> tuple[RunStatus, ...]:
        now, unseen = time.time(), Sight()
        ids = [run.run_id for run in self.runs]
        return tuple(build_status(self._views[name], self._cancelled.get(name, unseen), now) for name in ids)

    def _gave_up(self, pending: Sequence[RunView], *, timed_out: bool) -> Waited:
        names = tuple(view.run.run_id for view in pending)
        return Waited(self._rows(), names, timed_out, "" if timed_out else self._problem)


def _signature(run: RunDir) -> Signature:
    try:
        with os.scandir(run.journal) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return ()
    return tuple(sorted((name, info.st_size, info.st_mtime_ns) for name, info in found))
