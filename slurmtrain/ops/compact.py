"""Making few files of the many of a run that has ended. Every reader works on as before.

Each step leaves the run whole: a copy is complete before what it replaces goes, and readers pass over what is there
twice. A run whose compaction was killed is finished by the next.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.core import events as ev
from slurmtrain.errors import StoreError
from slurmtrain.logs.follow import read_range
from slurmtrain.ops.logs import MERGED_LOG, log_files
from slurmtrain.ops.timeline import RunView
from slurmtrain.store.aside import delete, half_written, left_aside, set_aside
from slurmtrain.store.folded import NAME as FOLDED
from slurmtrain.store.folded import fold
from slurmtrain.store.journal import MERGED, merge_journal
from slurmtrain.store.publish import replace, to_json
from slurmtrain.store.rundir import AttemptDir, RunDir, find_node_logs, number_of_node_log

MOST_FILES = 25  # of slurmtrain's own
_MOST_LOGS = 6
HEAVY = frozenset({"cores", "images"})  # of a launch: core files, saved containers. They go, they are gigabytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes ``start`` to ``end`` of a file, and where they come in the merged log."""

    path: Path
    start: int
    end: int
    at: int


def is_compact(run: RunDir) -> bool:
    """Whether there is nothing to be done; looks at a few names only."""
    others = [path for path in _entries(run.journal) if path.name != MERGED]
    last = _last_attempt(run)
    kept = {last.path} if last is not None else set()
    attempts = [path for path in _entries(run.attempts) if path not in kept]
    inside = _to_fold(last) if last is not None else []
    aside = [*left_aside(run.path), *left_aside(run.logs), *left_half(run)]
    return not (others or attempts or inside or aside or _entries(run.submissions) or _merged_logs(run))


def compact(view: RunView) -> None:
    """Fold, merge, and take away what was folded and merged. Raises ``StoreError``; then all that was is still there.

    The caller makes sure that the run has ended and that nobody writes into it any more.
    """
    run = view.run
    if view.damage:
        raise StoreError(view.damage[0])
    if link := _find_link(run):
        raise StoreError(f"{link} is a link to somewhere else: the run's small files are left as they are")
    logs = [path for path in log_files(view) if path.is_file()]
    nodes = _node_logs(view) if run.path / MERGED_LOG not in logs else {}
    rescue = sorted(path for path in _entries(run.logs) if path.name.startswith("rescue-"))
    journals = [path for path in _entries(run.journal) if path.name != MERGED]
    fold(
        run.path,
        [run.attempts, run.submissions, *journals, *rescue],
        skip=lambda path: number_of_node_log(path.name) is not None or path.parent.name in HEAVY,
    )
    pieces = _lay_out(view, logs, nodes) if nodes or len(logs) > _MOST_LOGS else []
    if pieces:
        _write_merged_log(run, pieces)
    if submissions := run.read_submissions():
        replace(run.folded_submissions, to_json({str(number): job_id for number, job_id in submissions.items()}))
    merge_journal(run.journal, _Relocation(view, pieces))
    _take_away([*_left_attempts(run), run.submissions, *rescue, *_merged_logs(run)])
    sweep_half(run)
    for path in left_aside(run.path) + left_aside(run.logs) + left_aside(run.attempts):
        delete(path)


def left_half(run: RunDir) -> list[Path]:
    """What a prune that was killed had begun to write in this run."""
    own = {FOLDED, run.folded_submissions.name, run.pruned_file.name}
    inside = [*half_written(run.journal, {MERGED}), *half_written(run.logs, {Path(MERGED_LOG).name})]
    return [*half_written(run.path, own), *inside]


def sweep_half(run: RunDir) -> None:
    """Take that away. Never raises."""
    for path in left_half(run):
        with contextlib.suppress(OSError):
            path.unlink()


def _find_link(run: RunDir) -> Path | None:
    """A folder of the run that is none of its own."""
    last = _last_attempt(run)
    folders = [run.attempts, run.logs, run.journal, run.submissions, *([last.path] if last is not None else [])]
    return next((folder for folder in folders if folder.is_symlink()), None)


def _take_away(paths: list[Path]) -> None:
    for path in paths:
        if path.exists() or path.is_symlink():
            delete(set_aside(path))


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder; nothing behind a link, whose target is not the run's."""
    try:
        return sorted(folder.iterdir()) if not folder.is_symlink() else []
    except OSError:
        return []


def _merged_logs(run: RunDir) -> list[Path]:
    """Logs of jobs that are in the merged one."""
    logs = _entries(run.logs)
    merged = run.path / MERGED_LOG in logs
    return [path for path in logs if path.name.startswith("train-")] if merged else []


def _last_attempt(run: RunDir) -> AttemptDir | None:
    attempts = run.read_attempts()
    return attempts[-1] if attempts else None


def _left_attempts(run: RunDir) -> Iterator[Path]:
    """All but owner and decision of the last attempt: a late execution of the job must find them at its gate."""
    last = _last_attempt(run)
    for path in _entries(run.attempts):
        if last is None or path != last.path:
            yield path
    if last is not None:
        yield from _to_fold(last)


def _to_fold(attempt: AttemptDir) -> list[Path]:
    kept = (attempt.owner.name, attempt.decision.name)
    return [path for path in _entries(attempt.path) if path.name.removesuffix(".d") not in kept]


def _node_logs(view: RunView) -> dict[tuple[int, int], list[Path]]:
    found = {}
    for attempt in view.state.attempts:
        for launch in attempt.launches:
            if logs := find_node_logs(view.run.attempt(attempt.number).launch(launch.number)):
                found[attempt.number, launch.number] = [path for path in logs if path.is_file()]
    return found


# -- one log ---------------------------------------------------------------------------------------------------------


def _lay_out(view: RunView, logs: list[Path], nodes: dict[tuple[int, int], list[Path]]) -> list[_Piece]:
    """The order of the merged log: job by job, and the nodes' own logs at the end of their launch."""
    pieces: list[_Piece] = []
    at = 0

    def add(path: Path, start: int, end: int) -> None:
        nonlocal at
        if end >= start:
            pieces.append(_Piece(path, start, end, at))
            at += end - start

    for path in logs:
        done, size = 0, path.stat().st_size
        for (attempt, launch), end in _ends(view, path, size):
            if own := nodes.get((attempt, launch)):
                add(path, done, end)
                for node in own:
                    add(node, 0, node.stat().st_size)
                done = end
        add(path, done, size)
    return pieces


def _ends(view: RunView, path: Path, size: int) -> list[tuple[tuple[int, int], int]]:
    """The launches that wrote into a log and where each ended, in order."""
    starts = []
    for attempt in view.state.attempts:
        for one in attempt.launches:
            if one.started is not None and view.run.path / one.started.log_file == path:
                starts.append((one.started.log_offset, (attempt.number, one.number), one.ended))
    starts.sort(key=lambda row: row[0])
    following = [*(row[0] for row in starts[1:]), size]
    found = []
    for (start, key, ended), following_start in zip(starts, following, strict=True):
        end = ended.log_end if ended is not None and ended.log_end else following_start
        found.append((key, min(max(end, start), following_start, size)))
    return found


def _write_merged_log(run: RunDir, pieces: list[_Piece]) -> None:
    target = run.path / MERGED_LOG
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            for piece in pieces:
                for data in read_range(piece.path, piece.start, piece.end):
                    stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as exc:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"cannot write {target}: {exc.strerror or exc}") from exc


class _Relocation:
    """Rewrites the records that name a place in a log that was merged."""

    def __init__(self, view: RunView, pieces: list[_Piece]) -> None:
        self._run = view.run
        self._pieces: dict[Path, list[_Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.path, []).append(piece)
        self._logs = {
            (e.attempt, e.launch): view.run.path / e.log_file for e in view.events if isinstance(e, ev.LaunchStarted)
        }

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        path = self._logs.get((record.get("attempt", -1), record.get("launch", -1)))
        if path is None or path not in self._pieces:
            return record
        if record.get("kind") == ev.LaunchStarted.kind:
            return {**record, "log_file": MERGED_LOG, "log_offset": self._find(path, record.get("log_offset"))}
        if record.get("kind") == ev.LaunchEnded.kind and record.get("log_end"):
            return {**record, "log_end": self._find(path, record.get("log_end"))}
        return record

    def _find(self, path: Path, offset: object) -> int:
        pieces = self._pieces[path]
        known = offset if isinstance(offset, int) else 0
        position = bisect.bisect_right([piece.start for piece in pieces], known) - 1
        piece = pieces[max(0, position)]
        return piece.at + min(max(0, known - piece.start), piece.end - piece.start)
