"""Following a run's output as it comes: through its attempts, its jobs and its nodes' logs, to the run's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.core.decision import RunState
from slurmtrain.errors import SlurmtrainError
from slurmtrain.logs.follow import FileFollower, LineJoiner
from slurmtrain.ops.logs import LogLine, log_files, node_logs_of_last
from slurmtrain.ops.status import Sight, build_status, see_jobs
from slurmtrain.ops.timeline import RunView, ended_at, read_view
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import RunDir

POLL_S = 0.5
JOURNAL_S = 2.0
SLURM_S = 30.0  # only while nothing is written
LINGER_S = 3.0  # the job's last lines come after the decision
LONG_AGO_S = 60.0  # nothing comes any more
REDRAW_S = 5.0  # how often a progress bar that never ends its line is shown
_LOOKS_PER_S = 200  # at files; more would load the server of a network file system
_JOBS, _LAUNCHES = 2, 2  # the newest ones are looked at; the one before until it is silent


@dataclass
class _Source:
    """One file that is followed."""

    follower: FileFollower
    joiner: LineJoiner
    news_at: float
    shown_at: float


@dataclass
class Following:
    """Follows a run's output through its attempts and jobs until the run has ended (or is held).

    ``starts`` are the offsets at which to begin in logs that exist already.
    """

    run: RunDir
    slurm: SlurmClient | None = None
    starts: dict[Path, int] = field(default_factory=dict)
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._sources: dict[Path, _Source] = {}
        self._active: list[Path] = []
        self._news_at = self.clock()
        self._told = ""

    def lines(self) -> Iterator[LogLine]:
        """What was written, in order, as it comes. Ends with the run; the caller may end it at any time."""
        journal_at = slurm_at = over_at = -1e9
        view = read_view(self.run)
        while True:
            now = self.clock()
            if now - journal_at >= JOURNAL_S:
                journal_at, view = now, read_view(self.run)
                self._meet_new_files(view)
            yield from self._poll()
            over = view.state.ended or view.state.state is RunState.HELD
            if over and time.time() - (ended_at(view) or 0.0) > LONG_AGO_S and view.state.ended:
                break
            over_at = (now if over_at < 0 else over_at) if over else -1e9
            if over and now - max(over_at, self._news_at) >= LINGER_S:
                break
            if not over and now - max(self._news_at, slurm_at) >= (SLURM_S if slurm_at > 0 else 1.0):
                slurm_at = now
                yield from self._tell_why_silent(view)
            self.sleep(max(POLL_S, len(self._active) / _LOOKS_PER_S))
        yield from self._flush(everything=True)
        for source in self._sources.values():
            source.follower.close()
        yield LogLine(self.run.logs, notice=_last_word(view))

    def _meet_new_files(self, view: RunView) -> None:
        jobs, nodes = log_files(view), node_logs_of_last(view, _LAUNCHES)
        for path in (*jobs, *nodes):
            if path not in self._sources:
                now = self.clock()
                self._sources[path] = _Source(FileFollower(path, self.starts.get(path, 0)), LineJoiner(), now, now)
        self._active = [*(path for path in self._sources if path in jobs)][-_JOBS:] + nodes
        for path in set(self._sources).difference(self._active):
            self._sources[path].follower.close()

    def _poll(self) -> Iterator[LogLine]:
        for path in self._active:
            source = self._sources[path]
            for piece in source.follower.poll():
                if piece.notice:
                    yield from self._flush(everything=True)
                    yield LogLine(path, notice=piece.notice)
                    continue
                self._news_at = source.news_at = self.clock()
                at = source.follower.offset - len(piece.data) - source.joiner.held
                for line in source.joiner.feed(piece.data):
                    yield LogLine(path, at, line)
                    at += len(line)
                    source.shown_at = source.news_at
        yield from self._flush(everything=False)

    def _flush(self, *, everything: bool) -> Iterator[LogLine]:
        """Hand on unfinished lines: a prompt or a progress bar is news too."""
        now = self.clock()
        for path, source in self._sources.items():
            idle = now - source.news_at >= 2 * POLL_S or now - source.shown_at >= REDRAW_S
            if source.joiner.held and (everything or idle):
                source.shown_at = now
                at = source.follower.offset - source.joiner.held
                yield LogLine(path, at, source.joiner.flush())

    def _tell_why_silent(self, view: RunView) -> Iterator[LogLine]:
        """One sentence when the reason for the silence has changed."""
        try:
            sights, problem = see_jobs([view], self.slurm)
        except SlurmtrainError as exc:
            sights, problem = {}, str(exc)
        row = build_status(view, sights.get(self.run.run_id, Sight()), time.time())
        sentence = problem or (f"{row.state.value}: {row.reason}" if row.reason else "")
        if sentence and sentence != self._told:
            self._told = sentence
            yield LogLine(self.run.logs, notice=sentence)


def _last_word(view: RunView) -> str:
    """Why following is over."""
    state = view.state.state
    why = view.state.history[-1].why if view.state.history else ""
    if state is RunState.HELD:
        return f"the run is held: {why}; `slurmtrain release {view.run.run_id}` lets it go on"
    return f"the run is over: {state.value}" + (f" ({why})" if why else "")
