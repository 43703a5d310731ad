"""Which files of a run go into a bundle, in which order, and how much of each; links are not followed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.core.run import Run
from slurmtrain.errors import StoreError
from slurmtrain.ops.compact import HEAVY
from slurmtrain.store.folded import NAME as FOLDED
from slurmtrain.store.rundir import RunDir

LOG_HEAD, LOG_TAIL, LAUNCH_TAIL, AROUND = 256 << 10, 2 << 20, 96 << 10, 64 << 10
NODE_HEAD, NODE_TAIL = 32 << 10, 128 << 10  # of a log that only one node wrote
FILE_HEAD, FILE_TAIL = 1 << 20, 1 << 20
_MOST_LAUNCHES = 20  # whose ends are taken from the middle of a log
_MOST_FILES = 20_000
_MOST_DEPTH = 12
_NEVER = re.compile(
    r"core(?:[.-].*)?|.*\.(?:core|coredump|cudacore|nvcore|pyz|ckpt|pt|pth|bin|safetensors|pkl|pickle|sif|sqsh)"
)
_OWN = ("explain.html", "agent.pyz", FOLDED)  # what was folded is taken file by file, so that secrets are masked
_NODE_LOG = re.compile(r"/launches/\d+/node-([^/]+)\.log$")
_SCENE = re.compile(r"/launches/\d+/scene/([^/+]*)(?:\+[^/]*)?/")
_PUBLISHED = re.compile(r"\..*\.tmp")


@dataclass(frozen=True, slots=True)
class Source:
    """A file to take: ``name`` below the bundle. ``pieces`` are (start, end) in bytes, empty for all of it."""

    path: Path
    name: str
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that is not taken, and why."""

    name: str
    why: str


def choose_files(
    run: RunDir,
    state: Run,
    *,
    since_attempt: int = 0,
    around: Mapping[Path, Sequence[int]] | None = None,
    blamed: Collection[str] = (),
    folded: Path | None = None,
) -> Iterator[Source | LeftOut]:
    """The most telling first: spec, scripts, journal and decisions, then scenes and logs.

    ``around`` are places in logs (bytes) whose surroundings belong into the bundle; scenes and logs of ``blamed`` nodes
    come before those of others, the newest attempt before older ones. ``folded`` holds the attempts of a run whose
    small files were joined (``store.folded``).
    """
    yield from _top(run)
    yield from _walk(run.journal, "journal")
    yield from _walk(run.submissions, "submissions")
    found = list(_of_attempts(run, since_attempt))
    if folded is not None:
        known = {item.name for item in found}
        found += [item for item in _of_attempts(RunDir(folded), since_attempt) if item.name not in known]
    logs = _walk(run.logs, "logs")
    found += [_log(item, state, since_attempt, around or {}) if isinstance(item, Source) else item for item in logs]
    found.sort(key=lambda item: _rank(item.name, blamed))
    for item in found:
        node_log = isinstance(item, Source) and _NODE_LOG.search(item.name) is not None
        yield _node_log(item, around or {}) if isinstance(item, Source) and node_log else item
    yield LeftOut("checkpoints", "checkpoints are never taken")


def _of_attempts(run: RunDir, since_attempt: int) -> Iterator[Source | LeftOut]:
    try:
        attempts = [attempt for attempt in run.read_attempts() if attempt.number >= since_attempt]
    except StoreError as exc:
        yield LeftOut("attempts", str(exc))
        return
    for attempt in reversed(attempts):
        yield from _walk(attempt.path, f"attempts/{attempt.path.name}")


def _rank(name: str, blamed: Collection[str]) -> int:
    """What is of the run as a whole, then of the nodes that are blamed, then of the others."""
    if node := _SCENE.search(name):
        return 1 if node[1] in blamed else 4
    if node := _NODE_LOG.search(name):
        return 3 if node[1] in blamed else 5
    return 2 if name.startswith("logs/") else 0


def _log(item: Source, state: Run, since_attempt: int, around: Mapping[Path, Sequence[int]]) -> Source:
    wanted = _launch_ends(state, item.path.name, since_attempt)
    wanted += [(at - AROUND, at + AROUND) for at in around.get(item.path.resolve(), ())]
    return _pieces(item, LOG_HEAD, LOG_TAIL, wanted)


def _node_log(item: Source, around: Mapping[Path, Sequence[int]]) -> Source:
    wanted = [(at - AROUND, at + AROUND) for at in around.get(item.path.resolve(), ())]
    return _pieces(item, NODE_HEAD, NODE_TAIL, wanted)


def _top(run: RunDir) -> Iterator[Source | LeftOut]:
    for entry in _entries(run.path):
        if entry.name in _OWN or entry.name.startswith("."):
            continue
        if entry.is_file(follow_symlinks=False):
            yield from _take(Path(entry.path), entry.name)


def _walk(folder: Path, name: str, depth: int = 0) -> Iterator[Source | LeftOut]:
    if depth > _MOST_DEPTH:
        yield LeftOut(name, "too deep")
        return
    entries = _entries(folder)
    if len(entries) > _MOST_FILES:
        yield LeftOut(name, f"{len(entries)} files, of which the first {_MOST_FILES} are taken")
    for entry in entries[:_MOST_FILES]:
        below = f"{name}/{entry.name}"
        if entry.is_dir(follow_symlinks=False) and entry.name in HEAVY and "/scene/" not in below:
            yield LeftOut(below, "core dumps and saved containers are never taken")
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), below, depth + 1)
        elif not _PUBLISHED.fullmatch(entry.name):
            yield from _take(Path(entry.path), below)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []


def _take(path: Path, name: str) -> Iterator[Source | LeftOut]:
    try:
        mode = path.lstat().st_mode
    except OSError as exc:
        yield LeftOut(name, f"it cannot be read: {exc.strerror or exc}")
        return
    if stat.S_ISLNK(mode):
        yield LeftOut(name, "a symbolic link: it is not followed")
    elif not stat.S_ISREG(mode):
        yield LeftOut(name, "no regular file")
    elif _NEVER.fullmatch(path.name):
        yield LeftOut(name, "core dumps, checkpoints and other binary files are never taken")
    else:
        yield _pieces(Source(path, name), FILE_HEAD, FILE_TAIL, [])


def _pieces(source: Source, head: int, tail: int, wanted: Sequence[tuple[int, int]]) -> Source:
    """The file whole where it is small, else its head, its tail and what is wanted between them."""
    try:
        size = source.path.lstat().st_size
    except OSError:  # it is told when it is read
        return Source(source.path, source.name)
    if size <= head + tail:
        return Source(source.path, source.name)
    found = sorted([(0, head), (size - tail, size), *((max(0, a), min(size, b)) for a, b in wanted if a < size)])
    joined: list[tuple[int, int]] = []
    for start, end in found:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return Source(source.path, source.name, tuple(joined))


def _launch_ends(state: Run, log: str, since_attempt: int) -> list[tuple[int, int]]:
    """The ends of the newest launches that failed, in this log."""
    found = []
    for attempt in state.attempts:
        for launch in attempt.launches if attempt.number >= since_attempt else ():
            named = launch.started is not None and launch.started.log_file.rpartition("/")[2] == log
            end = launch.ended.log_end if launch.ended is not None else 0
            if named and end > 0 and launch.diagnosis is not None:
                found.append((end - LAUNCH_TAIL, end))
    return found[-_MOST_LAUNCHES:]
