"""A run's output over all its jobs, attempts and launches: which bytes are whose, and following them as they come."""

from __future__ import annotations

import bisect
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from slurmtrain.core import events as ev
from slurmtrain.core.decision import RunState
from slurmtrain.core.run import Attempt, find_attempt
from slurmtrain.errors import NotFoundError, SlurmtrainError
from slurmtrain.logs.follow import FileFollower, LineJoiner
from slurmtrain.logs.lines import find_rank, split_prefix
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


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes ``start`` to ``end`` (None: the end) of a log."""

    path: Path
    start: int = 0
    end: int | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line, or the beginning of one that its writer has not ended. ``notice`` is for the reader alone."""

    path: Path
    offset: int = 0
    data: bytes = b""
    notice: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose output a line is, None where it is nobody's (before the first launch)."""

    attempt: int | None = None
    launch: int | None = None


def log_files(view: RunView) -> list[Path]:
    """The logs of all jobs of the run in order, whether they exist or not yet."""
    known: dict[Path, None] = {}
    for event in view.events:
        if isinstance(event, ev.LaunchStarted) and event.log_file:
            path = _inside(view.run, str(event.log_file))
        elif isinstance(event, (ev.Submitted, ev.AttemptStarted)):
            path = _inside(view.run, os.path.relpath(view.run.log_file(str(event.job_id)), view.run.path))
        else:
            continue
        if path is not None:
            known[path] = None
    for job_id in view.submissions.values():
        known[view.run.log_file(job_id)] = None
    with contextlib.suppress(OSError):
        for path in sorted(view.run.logs.glob("train-*.log"), key=lambda p: p.stat().st_mtime):
            known[path] = None
    return list(known)


def _inside(run: RunDir, relative: str) -> Path | None:
    """A path that the journal names; None where it leads out of the run directory."""
    normal = os.path.normpath(relative)
    return None if normal.startswith(("/", "..")) or "\0" in normal else run.path / normal


def find_segments(view: RunView, attempt: int | None = None, launch: int | None = None) -> list[Segment]:
    """The bytes that were asked for. Raises ``NotFoundError`` for an attempt or launch that the run does not have."""
    if attempt is None and launch is None:
        return [Segment(path) for path in log_files(view)]
    number = view.last_attempt_number if attempt is None else attempt
    found = find_attempt(view.state, number)
    if found is None:
        known = ", ".join(str(a.number) for a in view.state.attempts) or "none"
        raise NotFoundError(f"run {view.run.run_id} has no attempt {number}; it has {known}")
    starts = _starts(view, found, launch)
    if launch is not None and all(one.number != launch for one in found.launches):
        known = ", ".join(str(one.number) for one in found.launches) or "none"
        raise NotFoundError(f"attempt {number} of run {view.run.run_id} has no launch {launch}; it has {known}")
    boundaries = _boundaries(view)
    segments = []
    for path, offset, ended in starts:
        offsets = [at for at, _ in boundaries.get(path, ()) if at > offset]
        segments.append(Segment(path, offset, ended or (offsets[0] if offsets else None)))
    return _joined(segments)


def _starts(view: RunView, attempt: Attempt, launch: int | None) -> list[tuple[Path, int, int | None]]:
    """Log, first byte and last byte of each launch that was asked for; an attempt's include the lines between."""
    found = []
    for one in attempt.launches:
        if one.started is None or (launch is not None and one.number != launch):
            continue
        path = _inside(view.run, str(one.started.log_file)) if one.started.log_file else None
        if path is not None and isinstance(one.started.log_offset, int):
            end = one.ended.log_end if launch is not None and one.ended is not None else None
            found.append((path, one.started.log_offset, end or None))
    return found


def _joined(segments: list[Segment]) -> list[Segment]:
    joined: list[Segment] = []
    for segment in segments:
        if joined and joined[-1].path == segment.path and joined[-1].end == segment.start:
            joined[-1] = Segment(segment.path, joined[-1].start, segment.end)
        else:
            joined.append(segment)
    return joined


def _boundaries(view: RunView) -> dict[Path, list[tuple[int, Owner]]]:
    """Where each launch's output begins, by log, in order."""
    found: dict[Path, list[tuple[int, Owner]]] = {}
    for attempt in view.state.attempts:
        for path, offset, _ in _starts(view, attempt, None):
            owners = [x.number for x in attempt.launches if x.started and x.started.log_offset == offset]
            found.setdefault(path, []).append((offset, Owner(attempt.number, owners[0] if owners else None)))
    for rows in found.values():
        rows.sort(key=lambda row: row[0])
    return found


class Owners:
    """Tells whose line it is."""

    def __init__(self, view: RunView) -> None:
        self._boundaries = _boundaries(view)

    def find(self, path: Path, offset: int) -> Owner:
        rows = self._boundaries.get(path, [])
        position = bisect.bisect_right([at for at, _ in rows], offset)
        return rows[position - 1][1] if position else Owner()


def rank_of(data: bytes, tasks_per_node: int = 0) -> int | None:
    """The rank that printed a line; see ``logs.lines.find_rank``."""
    return find_rank(split_prefix(data[:4096].decode("utf-8", "replace")), tasks_per_node)


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
        self._followers: dict[Path, FileFollower] = {}
        self._joiners: dict[Path, LineJoiner] = {}
        self._news_at = self._flushed_at = self.clock()
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
            self.sleep(POLL_S)
        yield from self._flush(everything=True)
        for follower in self._followers.values():
            follower.close()

    def _meet_new_files(self, view: RunView) -> None:
        for path in log_files(view):
            if path not in self._followers:
                self._followers[path] = FileFollower(path, self.starts.get(path, 0))
                self._joiners[path] = LineJoiner()

    def _poll(self) -> Iterator[LogLine]:
        for path in list(self._followers)[-2:]:  # the newest job's, and the one before until it is silent
            follower, joiner = self._followers[path], self._joiners[path]
            for piece in follower.poll():
                if piece.notice:
                    yield from self._flush(everything=True)
                    yield LogLine(path, notice=piece.notice)
                    continue
                self._news_at = self.clock()
                at = follower.offset - len(piece.data) - joiner.held
                for line in joiner.feed(piece.data):
                    yield LogLine(path, at, line)
                    at += len(line)
        yield from self._flush(everything=False)

    def _flush(self, *, everything: bool) -> Iterator[LogLine]:
        """Hand on unfinished lines: a prompt or a progress bar is news too."""
        now = self.clock()
        idle = now - self._news_at >= 2 * POLL_S or now - self._flushed_at >= REDRAW_S
        if not everything and not idle:
            return
        self._flushed_at = now
        for path, joiner in self._joiners.items():
            if joiner.held:
                at = self._followers[path].offset - joiner.held
                yield LogLine(path, at, joiner.flush())

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
