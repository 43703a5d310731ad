"""Where each rank of a node is: one tiny file per rank in memory of the node, never on shared storage.

``slurmtrain.training`` writes them, once a second at most: ``<step> <when> <seconds per step> <seconds at work>``, a
dash for what is not known. The node's companion reads them, once a minute and after a hang, and removes them.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from slurmtrain.agent.processes import Process, newest_launch, read_environ
from slurmtrain.core.paces import Pace
from slurmtrain.hosts.files import open_file

BEATS = "SLURMTRAIN_BEATS"  # the environment variable that names the folder
_PLACES = (Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - of the node, the folder itself is private
TERM = "term"  # the file in which a companion says that SIGTERM came to it, too
_PREFIX = "slurmtrain-beats-"
_FILE = re.compile(r"(.{1,200})@([0-9]{1,7})", re.ASCII)
_MAX_FILES = 4096
_MAX_BYTES = 256
_MAX_LOOKS = 8  # of processes that end meanwhile
_MAX_RANKS = 16  # of one node, in its file on shared storage
_OLD_S = 86400.0  # what a companion left that was killed


class NodeBeats:
    """The heartbeats of the ranks of one node, for its companion. ``folder`` is that of the newest launch seen here."""

    def __init__(self, node: str, job_id: str) -> None:
        self._node = node
        self._job_id = job_id
        self._launch = ""
        self.folder = ""

    def see(self, ranks: Sequence[Process]) -> None:
        """Learn the folder of the newest launch among these processes; those of the ones before are removed."""
        launch = newest_launch(ranks)
        if launch == self._launch:
            return
        for process in [process for process in ranks if process.launch == launch][:_MAX_LOOKS]:
            if folder := read_environ(process.pid).get(BEATS, ""):
                self._launch, self.folder = launch, folder
                self.remove(but=folder)
                return

    def read(self, ranks: Sequence[Process]) -> list[Pace]:
        """Of the newest launch among these processes."""
        self.see(ranks)
        return read_paces(self.folder, self._node) if ranks and newest_launch(ranks) == self._launch else []

    def tell_term(self) -> None:
        """Slurm signalled the whole job and not the ranks alone: they may save. Never raises.

        ``slurmtrain.training`` waits a second for this mark, and takes each for one signal.
        """
        with contextlib.suppress(OSError, ValueError):
            if self.folder:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.folder, 0o700)  # noqa: PTH102
                if _is_ours(self.folder):
                    Path(self.folder, f"{self._node}@{TERM}").touch()

    def report(self, ranks: Sequence[Process]) -> dict[str, Any]:
        """For the node's file: ``launch``, and ``paces``, rows of rank, step, when, seconds per step, seconds at work.

        Of a node with many ranks those that are behind or slow; empty where the ranks say nothing.
        """
        paces = self.read(ranks)
        if len(paces) > _MAX_RANKS:
            behind = sorted(paces, key=lambda pace: pace.step)[: _MAX_RANKS // 2]
            slow = sorted(paces, key=lambda pace: -(pace.busy_s or pace.step_s or 0.0))
            paces = [*behind, *[pace for pace in slow if pace not in behind][: _MAX_RANKS - len(behind)]]
        rows = [[pace.rank, pace.step, pace.at, pace.step_s, pace.busy_s] for pace in paces]
        return {"launch": newest_launch(ranks), "paces": rows} if rows else {}

    def remove(self, but: str = "") -> None:
        """Those of all launches of the job: a short one came and went between two looks."""
        found = [str(path) for place in _PLACES for path in place.glob(f"{_PREFIX}{os.geteuid()}-{self._job_id}.*")]
        for folder in {*found, self.folder} - {but, ""}:
            remove_beats(folder, self._node)


def read_reported(record: Mapping[str, Any], launch: str) -> list[Pace]:
    """What a node's file says about this launch; rows that make no sense are passed over."""
    found: list[Pace] = []
    rows = record.get("paces")
    if record.get("launch") != launch or not isinstance(rows, list):
        return found
    for row in rows[:_MAX_RANKS]:
        with contextlib.suppress(ValueError, TypeError):
            rank, step, at, step_s, busy_s = row
            times = [None if value is None else _number(value) for value in (step_s, busy_s)]
            node, seen_at = str(record["node"])[:100], _number(record["at"])
            found.append(Pace(int(rank), node, int(step), _number(at), seen_at, *times))
    return found


def beats_folder(job_id: str, key: str) -> Path:
    """The folder of one launch, the same on every node; ``key`` is ``<attempt>.<launch>``."""
    place = next((place for place in _PLACES if os.access(place, os.W_OK)), _PLACES[-1])
    return place / f"{_PREFIX}{os.geteuid()}-{job_id}.{key}"


def read_paces(folder: str, node: str) -> list[Pace]:
    """What the ranks of this node said last. Never raises; a folder that others can write is not read."""
    found = []
    for path, rank in _files(folder, node):
        pace = _read(path, rank, node)
        found += [pace] if pace is not None else []
    return sorted(found, key=lambda pace: pace.rank)


def remove_beats(folder: str, node: str) -> None:
    """Several nodes may share one machine, and then the folder: the last one removes it."""
    if _is_ours(folder):
        with contextlib.suppress(OSError):
            for path in Path(folder).iterdir():
                if path.name.startswith(f"{node}@"):
                    path.unlink()
            os.rmdir(folder)  # noqa: PTH106


def remove_old_beats() -> None:
    """Folders of this user that nobody has written to for a day."""
    for place in _PLACES:
        for path in place.glob(f"{_PREFIX}{os.geteuid()}-*"):
            with contextlib.suppress(OSError):
                if _is_ours(str(path)) and time.time() - path.stat().st_mtime > _OLD_S:
                    for child in path.iterdir():
                        child.unlink()
                    path.rmdir()


def _is_ours(folder: str) -> bool:
    """A private folder of this user with our name: /dev/shm and /tmp belong to everybody."""
    try:
        info = os.lstat(folder)
    except (OSError, ValueError):
        return False
    named = Path(folder).name.startswith(_PREFIX) and Path(folder).is_absolute()
    return named and stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o077


def _files(folder: str, node: str) -> Iterator[tuple[Path, int]]:
    if not _is_ours(folder):
        return
    try:
        names = os.listdir(folder)[:_MAX_FILES]  # noqa: PTH208
    except OSError:
        return
    for name in names:
        match = _FILE.fullmatch(name)
        if match is not None and match[1] == node:
            yield Path(folder, name), int(match[2])


def _read(path: Path, rank: int, node: str) -> Pace | None:
    try:
        with open_file(path, follow=False) as stream:
            words = stream.read(_MAX_BYTES).decode("ascii", "replace").split()
        step, at, step_s, busy_s = words
        return Pace(rank, node, int(step), _number(at), time.time(), _maybe(step_s), _maybe(busy_s))
    except (OSError, ValueError):
        return None


def _number(text: str | float) -> float:
    value = float(text)
    if not math.isfinite(value) or not 0 <= value < 1e11:
        raise ValueError(f"{text} is no time")
    return value


def _maybe(text: str) -> float | None:
    return None if text == "-" else _number(text)
