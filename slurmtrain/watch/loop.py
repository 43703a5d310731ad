"""The watcher: one query per interval for all runs, then each run is looked after by itself."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.core.decision import RunState
from slurmtrain.core.events import Event
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import StateFlag
from slurmtrain.core.run import Run, fold
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.array_jobs import record_missing_jobs
from slurmtrain.ops.observe import Observation, observe
from slurmtrain.ops.recover import Care, find_job, look_after
from slurmtrain.ops.space import look_at_space, warn_of_space
from slurmtrain.ops.unsubmitted import end_unsubmitted
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.groups import groups_of
from slurmtrain.store.inbox import empty, inbox_of
from slurmtrain.store.journal import JournalWriter, read_what_can_be_read
from slurmtrain.store.rundir import RunDir, runs_of
from slurmtrain.watch.lease import Lease
from slurmtrain.watch.shipping import ShippingChild
from slurmtrain.watch.wake import InboxBell

_MAX_BACK_OFF_S = 600.0
_JITTER = 0.1
_COMING_BACK_S = 2.0  # between looks while a requeued job is on its way back
_COMING_BACK_FOR_S = 30.0  # and for how long: a node that does not clean up keeps a job COMPLETING for minutes


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the store did. ``unknown`` is why Slurm could not be asked, "" if it could."""

    runs: int = 0
    events: tuple[tuple[str, Event], ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    unknown: str = ""
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    """A run that may need care. ``damaged``: a part of its journal cannot be read, so its state may be an old one."""

    run: RunDir
    state: Run
    job_id: JobId | None
    damaged: bool = False


@dataclass
class Watcher:
    """Looks after all runs of a store. ``tell`` gets each event and problem as it is found."""

    store: Path
    slurm: SlurmClient
    interval_s: float
    observe_only: bool = False
    tell: Callable[[str, Event | str], None] = field(default=lambda _run, _what: None)

    def __post_init__(self) -> None:
        self._journals: dict[str, JournalWriter] = {}
        self._ended: set[str] = set()
        self._whole: set[str] = set()  # arrays each of whose runs knows its job
        self._failures = 0
        self._stopping = False
        self._space = ""
        self._coming_back: dict[tuple[str, int], float] = {}
        self._bell = InboxBell(inbox_of(self.store))
        self._shipping = ShippingChild(self.store)

    def stop(self) -> None:
        """Leave after the run that is being looked at; may be called from a signal handler."""
        self._stopping = True
        self._bell.ring()

    def run(self, after_look: Callable[[Pass], None] = lambda _pass: None) -> None:
        """Watch until ``stop``; ``after_look`` may call it."""
        lease = Lease(self.store, 3 * self.interval_s + 60)
        with self._bell:
            while not self._stopping:
                result = self.look_once(lease)
                if not result.held_by:
                    self.ship()
                after_look(result)
                self._failures = self._failures + 1 if result.unknown else 0
                if not self._stopping:
                    self._bell.wait(self._pause())
                if not self._stopping and not result.unknown:
                    time.sleep(min(1.0, self.interval_s))  # several jobs often end together: look once for all
        lease.give_back()

    def ship(self, wait_s: float = 0.0) -> None:
        """See to it that what runs have left is sent; wait so long at most for the process that sends."""
        if not self.observe_only and (problem := self._shipping.look()):
            self.tell("", problem)
        self._shipping.wait(wait_s)

    def count_runs(self) -> int:
        """How many runs there are that have not ended and are not held."""
        return sum(1 for _ in self._runs())

    def look_once(self, lease: Lease | None = None) -> Pass:
        """One pass over all runs that have not ended."""
        try:
            if lease is not None and (holder := lease.acquire()) is not None:
                return Pass(held_by=holder)
            empty(self.store)
            self._look_at_space()
            self._mend_arrays()
            runs = list(self._runs())
            if not runs:
                return Pass()
            observation = observe(self.slurm, [found.job_id for found in runs if found.job_id is not None])
        except SlurmtrainError as exc:
            self.tell("", str(exc))
            return Pass(unknown=str(exc))
        return self._look_after_all(runs, observation)

    def _look_after_all(self, runs: list[_Found], observation: Observation) -> Pass:
        events: list[tuple[str, Event]] = []
        problems: list[tuple[str, str]] = []
        known = {found.job_id for found in runs if found.job_id is not None}
        for found in runs:
            run, state, job_id = found.run, found.state, found.job_id
            if self._stopping or (job_id is None and (found.damaged or self.observe_only)):
                continue
            if state.ended and not found.damaged and job_id not in observation.jobs:
                self._ended.add(run.run_id)  # it was queued again, and Slurm has forgotten it since
                continue
            if job_id is not None:
                self._note_coming_back(run, state, observation.jobs.get(job_id))
            try:
                for event in self._look_after(found, observation, known):
                    events.append((run.run_id, event))
                    self.tell(run.run_id, event)
            except Exception as exc:  # noqa: BLE001 - one run's trouble, whatever it is, is not another's
                problem = str(exc) if isinstance(exc, SlurmtrainError) else f"cannot be looked after: {exc!r}"[:400]
                problems.append((run.run_id, problem))
                self.tell(run.run_id, problem)
        return Pass(len(runs), tuple(events), tuple(problems))

    def _look_after(self, found: _Found, observation: Observation, known: set[JobId]) -> list[Event]:
        run = found.run
        journal = self._journals.get(run.run_id)
        if journal is None:
            name = f"watch-{socket.gethostname()}-{os.getpid()}"
            journal = self._journals[run.run_id] = JournalWriter(run.journal, name)
        journal.catch_up()
        plan = run.read_plan()
        if found.job_id is None:
            return end_unsubmitted(run, plan, found.state, observation, known, journal)
        observe_only = self.observe_only or found.damaged  # what cannot be read may say that nothing is to be done
        return look_after(Care(run, plan, found.state, found.job_id, observation, self.slurm, journal, observe_only))

    def _note_coming_back(self, run: RunDir, state: Run, record: JobRecord | None) -> None:
        """A requeued job between its two executions, since when: seconds count there, for nobody else may act."""
        started = state.last_attempt.started if state.last_attempt else None
        if record is None or started is None or started.job_id != str(record.job_id):
            return
        if record.restart_count > started.restart_count and (
            record.reason == "BeginTime" or StateFlag.COMPLETING in record.state.flags
        ):
            self._coming_back.setdefault((run.run_id, record.restart_count), time.monotonic())

    def _look_at_space(self) -> None:
        """Say it once when the store gets full, and again when that changes."""
        space = look_at_space(self.store)
        state = "full" if space is not None and space.is_full else "low" if space is not None and space.is_low else ""
        if state != self._space:
            self._space = state
            self.tell("", warn_of_space(self.store, space) or "the store has room again")

    def _mend_arrays(self) -> None:
        for group in groups_of(self.store):
            if group.group_id in self._whole or not group.read_job_id():
                continue
            try:
                record_missing_jobs(group)
                self._whole.add(group.group_id)
            except SlurmtrainError as exc:
                self.tell(group.group_id, str(exc))

    def _runs(self) -> Iterator[_Found]:
        for run in runs_of(self.store):
            if run.run_id in self._ended:
                continue
            try:
                events, damage = read_what_can_be_read(run.journal)
                state = fold(events)
                job_id = find_job(run, state)
            except Exception as exc:  # noqa: BLE001 - see above
                self.tell(
                    run.run_id, str(exc) if isinstance(exc, SlurmtrainError) else f"cannot be read: {exc!r}"[:400]
                )
                continue
            for sentence in damage:
                self.tell(run.run_id, f"{sentence}; the run is observed without it, and nothing is done about it")
            if state.ended and not _still_queued(state):
                if not damage:
                    self._ended.add(run.run_id)
                continue
            if state.state is not RunState.HELD:
                yield _Found(run, state, job_id, bool(damage))

    def _pause(self) -> float:
        """The interval with jitter; longer and longer while Slurm does not answer."""
        seconds = min(self.interval_s * 2.0 ** min(self._failures, 10), max(_MAX_BACK_OFF_S, self.interval_s))
        jitter: float = random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - spreads load, protects nothing
        now = time.monotonic()
        self._coming_back = {
            k: since for k, since in self._coming_back.items() if now - since < _COMING_BACK_FOR_S * 10
        }
        waiting = any(now - since < _COMING_BACK_FOR_S for since in self._coming_back.values())
        return min(seconds, _COMING_BACK_S) * jitter if waiting and not self._failures else seconds * jitter


def _still_queued(state: Run) -> bool:
    """An ended run whose job Slurm had queued again when it was last seen."""
    return state.job is not None and state.job.state in {"PENDING", "REQUEUED", "COMPLETING"}
