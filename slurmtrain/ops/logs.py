"""A run's output over all its jobs, attempts and launches: which bytes are whose, and when they were written."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from slurmtrain.core import events as ev
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.run import Attempt, Launch, find_attempt
from slurmtrain.core.spec import Spec, all_components, has_node_logs
from slurmtrain.errors import NotFoundError
from slurmtrain.logs.lines import HET_STRIDE, Line, find_rank, split_prefix
from slurmtrain.logs.times import read_marks
from slurmtrain.ops.timeline import RunView, as_time, find_plan
from slurmtrain.store.rundir import RunDir, find_node_logs, number_of_node_log

MERGED_LOG = "logs/merged.log"  # relative to the run directory
_HEAD = 4096  # bytes of a line in which its prefixes stand


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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a line comes from, None where nothing tells."""

    attempt: int | None = None
    launch: int | None = None
    rank: int | None = None
    node: str | None = None


def log_files(view: RunView) -> list[Path]:
    """The logs of all jobs of the run in order, whether they exist or not yet, without those of nodes."""
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
    merged = view.run.path / MERGED_LOG
    if merged in known:  # of a run that was compacted: what may be left of the others is in it
        return [merged]
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
        return _all_segments(view)
    number = view.last_attempt_number if attempt is None else attempt
    found = find_attempt(view.state, number)
    if found is None:
        known = ", ".join(str(a.number) for a in view.state.attempts) or "none"
        raise NotFoundError(f"run {view.run.run_id} has no attempt {number}; it has {known}")
    wanted = [one for one in found.launches if launch is None or one.number == launch]
    if launch is not None and not wanted:
        known = ", ".join(str(one.number) for one in found.launches) or "none"
        raise NotFoundError(f"attempt {number} of run {view.run.run_id} has no launch {launch}; it has {known}")
    boundaries = _boundaries(view)
    segments = []
    for one in wanted:
        if (begin := _start_of(view, one)) is None:
            segments += _node_segments(view, number, one.number)
            continue
        path, offset = begin
        ended = one.ended.log_end if launch is not None and one.ended is not None else None
        offsets = [at for at, _ in boundaries.get(path, ()) if at > offset]
        whole = Segment(path, offset, ended or (offsets[0] if offsets else None))
        segments += _with_nodes(view, whole, Owner(number, one.number))
    return _joined(segments)


def _with_nodes(view: RunView, segment: Segment, owner: Owner) -> list[Segment]:
    """What the job's log says of a launch, with the nodes' own logs where the launch had ended."""
    if owner.attempt is None or owner.launch is None:
        return [segment]
    nodes = _node_segments(view, owner.attempt, owner.launch)
    launch = _find_launch(view, owner.attempt, owner.launch)
    end = launch.ended.log_end if launch is not None and launch.ended is not None else 0
    if not nodes or not end or end < segment.start or (segment.end is not None and end >= segment.end):
        return [segment, *nodes]
    return [replace(segment, end=end), *nodes, replace(segment, start=end)]


def _all_segments(view: RunView) -> list[Segment]:
    """All logs in order; the nodes' own come behind what the job's log says of their launch."""
    if not _may_have_node_logs(view):
        return [Segment(path) for path in log_files(view)]
    boundaries, segments = _boundaries(view), []
    for path in log_files(view):
        rows = [(0, Owner()), *boundaries.get(path, ())]
        ends = [*(at for at, _ in rows[1:]), None]
        for (at, owner), end in zip(rows, ends, strict=True):
            segments += _with_nodes(view, Segment(path, at, end), owner)
    return _joined(segments)


def _node_segments(view: RunView, attempt: int, launch: int) -> list[Segment]:
    found = _find_launch(view, attempt, launch)
    if found is not None and found.started is not None and found.started.log_file == MERGED_LOG:
        return []  # they are in it, and what is left of the files is about to go
    return [Segment(path) for path in find_node_logs(view.run.attempt(attempt).launch(launch))]


def _find_launch(view: RunView, attempt: int, launch: int) -> Launch | None:
    found = find_attempt(view.state, attempt)
    return next((x for x in found.launches if x.number == launch), None) if found is not None else None


def _may_have_node_logs(view: RunView) -> bool:
    plan = find_plan(view.run)
    return plan is None or has_node_logs(plan.spec)


def node_logs_of_last(view: RunView, launches: int) -> list[Path]:
    """The nodes' own logs of the newest launches, the oldest launch first."""
    if not _may_have_node_logs(view):
        return []
    last = [(attempt.number, one.number) for attempt in view.state.attempts for one in attempt.launches][-launches:]
    return [segment.path for pair in last for segment in _node_segments(view, *pair)]


def _start_of(view: RunView, launch: Launch) -> tuple[Path, int] | None:
    """The job's log and the byte at which a launch began."""
    if launch.started is None or not launch.started.log_file or not isinstance(launch.started.log_offset, int):
        return None
    path = _inside(view.run, str(launch.started.log_file))
    return (path, launch.started.log_offset) if path is not None else None


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
        for one in attempt.launches:
            if (begin := _start_of(view, one)) is not None:
                found.setdefault(begin[0], []).append((begin[1], Owner(attempt.number, one.number)))
    for rows in found.values():
        rows.sort(key=lambda row: row[0])
    return found


# -- where a line comes from -----------------------------------------------------------------------------------------


class Origins:
    """Tells of which attempt, launch, rank and node a line is."""

    def __init__(self, view: RunView) -> None:
        self._view = view
        self._boundaries = _boundaries(view)
        self._nodes: dict[int | None, tuple[str, ...]] = {}
        plan = find_plan(view.run)
        self._spec: Spec | None = plan.spec if plan is not None else None

    @cached_property
    def tasks_per_node(self) -> int:
        """Ranks behind each of Slurm's tasks' labels under torchrun; 0 where the label is the rank."""
        spec = self._spec
        return spec.resources.tasks_per_node if spec is not None and spec.launcher == "torchrun" else 0

    def find(self, line: LogLine) -> Origin:
        read = split_prefix(line.data[:_HEAD].decode("utf-8", "replace"))
        owner = self._owner(line.path, line.offset)
        nodes = self._nodes_of(owner.attempt)
        number = number_of_node_log(line.path.name)
        place = self._index_of(*number) if number is not None else self._index_by_label(read.label)
        node = nodes[place] if place is not None and place < len(nodes) else _known(read, nodes)
        return Origin(owner.attempt, owner.launch, find_rank(read, self.tasks_per_node), node)

    def knows_node(self, node: str) -> bool:
        """Whether any attempt of the run had this node."""
        return any(node in self._nodes_of(attempt.number) for attempt in self._view.state.attempts)

    def all_nodes(self) -> list[str]:
        """The nodes of all attempts."""
        return list(dict.fromkeys(n for attempt in self._view.state.attempts for n in self._nodes_of(attempt.number)))

    def _owner(self, path: Path, offset: int) -> Owner:
        if number_of_node_log(path.name) is not None:
            words = path.parts[-4:-1]  # <attempt>/launches/<launch>
            if len(words) == 3 and words[0].isdigit() and words[2].isdigit():
                return Owner(int(words[0]), int(words[2]))
        rows = self._boundaries.get(path, [])
        position = bisect.bisect_right([at for at, _ in rows], offset)
        return rows[position - 1][1] if position else Owner()

    def _nodes_of(self, number: int | None) -> tuple[str, ...]:
        if number not in self._nodes:
            attempt = find_attempt(self._view.state, number) if number is not None else None
            self._nodes[number] = _expand(attempt)
        return self._nodes[number]

    def _index_by_label(self, label: int | None) -> int | None:
        """Which of the attempt's nodes runs a task, with Slurm's block distribution."""
        if label is None or label >= HET_STRIDE or self._spec is None:
            return None
        first = nodes = 0
        for part in all_components(self._spec):
            tasks = 1 if self._spec.launcher == "torchrun" else part.tasks_per_node
            if label < first + part.nodes * tasks:
                return nodes + (label - first) // tasks
            first, nodes = first + part.nodes * tasks, nodes + part.nodes
        return None

    def _index_of(self, component: int, number: int) -> int:
        parts = all_components(self._spec) if self._spec is not None else ()
        return sum(part.nodes for part in parts[:component]) + number


def _known(line: Line, nodes: Sequence[str]) -> str | None:
    """The node that the line itself names in its prefix."""
    return line.node if line.node in nodes else None


def _expand(attempt: Attempt | None) -> tuple[str, ...]:
    try:
        return tuple(expand_nodes(str(attempt.started.nodes))) if attempt is not None and attempt.started else ()
    except ValueError:
        return ()


def rank_of(data: bytes, tasks_per_node: int = 0) -> int | None:
    """The rank that printed a line; see ``logs.lines.find_rank``."""
    return find_rank(split_prefix(data[:_HEAD].decode("utf-8", "replace")), tasks_per_node)


# -- when it was written ---------------------------------------------------------------------------------------------


def cut_before(view: RunView, segments: Sequence[Segment], since: float) -> list[Segment]:
    """The segments without what is known to have been written before ``since`` (seconds since the epoch).

    Known are the starts and ends of launches and the agent's marks (``logs.times``): what was written up to a minute
    earlier may stay, nothing later is left out.
    """
    marks = _marks(view)
    kept = []
    for segment in segments:
        with contextlib.suppress(OSError):
            if segment.path.stat().st_mtime < since:
                continue
            known = [offset for at, offset in marks.get(segment.path, ()) if at <= since]
            start = max([segment.start, *known])
            if segment.end is None or start < segment.end:
                kept.append(replace(segment, start=start))
    return kept


def _marks(view: RunView) -> dict[Path, list[tuple[float, int]]]:
    """Times and sizes of each log, as far as they are known."""
    found: dict[Path, list[tuple[float, int]]] = {}
    for attempt in view.state.attempts:
        for one in attempt.launches:
            begin = _start_of(view, one)
            if begin is None or one.started is None:
                continue
            rows = found.setdefault(begin[0], [])
            rows.append((as_time(one.started.at) or 0.0, begin[1]))
            if one.ended is not None and (at := as_time(one.ended.at)) is not None:
                rows.append((at, one.ended.log_end))
            folder = view.run.attempt(attempt.number).launch(one.number)
            nodes = find_node_logs(folder)
            for at, sizes in read_marks(folder):
                rows.append((at, sizes[0]))
                if len(sizes) == 1 + len(nodes):  # else not every node had a log yet
                    for path, size in zip(nodes, sizes[1:], strict=True):
                        found.setdefault(path, []).append((at, size))
    return found
