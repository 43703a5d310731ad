"""Noticing that a launch does nothing any more, and finding out which rank holds it up."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.stacks import read_states
from slurmtrain.core.spec import Hang, Spec, all_components
from slurmtrain.core.stacks import OddRanks, find_odd_ranks, parse_stacks
from slurmtrain.logs.lines import find_rank, split_prefix
from slurmtrain.store.rundir import HEARTBEAT

HUNG_GRACE_S = 2.0  # from TERM to KILL for ranks that do nothing any more
DEFAULT_S = 1800  # for a training that sends heartbeats and says nothing else about it
_LOOK_S = 30.0  # between two looks at the signs of life, at most
_LONGEST_DUMP_S, _QUIET_S = 20.0, 3.0
_LONGEST_LINE = 4096
_MAX_DUMP = 64 << 20  # bytes of stacks that are read
_WORDS = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "waits in the kernel (storage or a device)"}


class HangWatch:
    """Looks at signs of life of one launch: its output, its heartbeat, its checkpoints."""

    def __init__(self, hang: Hang, launch: LaunchProcess, checkpoints: Path) -> None:
        self._hang = hang
        self._launch = launch
        self._heartbeat = launch.folder / HEARTBEAT if launch.folder is not None else None
        self._checkpoints = checkpoints
        self._seen: tuple[object, ...] = ()
        self._alive_at = self._started_at = time.monotonic()
        self._next_look = 0.0

    def silent_for(self) -> float | None:
        """Seconds without a sign of life once they are too many, else None. Cheap: looks now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        limit = self._limit()
        self._next_look = now + (_LOOK_S if limit is None else min(_LOOK_S, max(1.0, limit / 20)))
        if limit is None:
            return None
        seen = (self._launch.log_end(), _changed_at(self._heartbeat), _changed_at(self._checkpoints))
        if seen != self._seen or self._is_paused():
            self._seen, self._alive_at = seen, now
        silent = now - self._alive_at
        young = now - self._started_at < self._hang.startup_s
        return silent if silent >= limit and not young else None

    def _limit(self) -> float | None:
        if self._hang.timeout_s is not None:
            return float(self._hang.timeout_s) or None
        return float(DEFAULT_S) if _changed_at(self._heartbeat) is not None else None

    def _is_paused(self) -> bool:
        """The training had announced that nothing would be heard for a while."""
        if self._heartbeat is None:
            return False
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            with self._heartbeat.open("rb") as stream:
                _, _, rest = stream.read(4096).partition(b" ")
            return time.time() < float(json.loads(rest).get("pause_until", 0))
        return False


def _changed_at(path: Path | None) -> float | None:
    try:
        return path.stat().st_mtime if path is not None else None
    except OSError:
        return None


def wait_for_stacks(launch: LaunchProcess, at: float) -> None:
    """Until the launch is over, or has written nothing more for a while after the moment of the stacks."""
    size, quiet_since = launch.log_size(), max(time.time(), at)
    while launch.poll() is None and time.time() < at + _LONGEST_DUMP_S:
        time.sleep(0.5)
        now = launch.log_size()
        if now != size:
            size, quiet_since = now, time.time()
        if time.time() - quiet_since >= _QUIET_S and time.time() > at:
            return


def explain_hang(launch: LaunchProcess, spec: Spec) -> tuple[str, int | None, str | None]:
    """A sentence about who holds the launch up, the rank and its node; an empty sentence where nobody stands out."""
    states = read_states(launch.folder) if launch.folder is not None else {}
    for rank, (node, state) in sorted(states.items()):
        if state in _WORDS:
            return f"rank {rank} on {node} {_WORDS[state]}, and the others wait for it", rank, node
    ranks = sum(part.nodes * part.tasks_per_node for part in all_components(spec))
    tasks_per_node = spec.resources.tasks_per_node if spec.launcher == "torchrun" else 0
    odd = find_odd_ranks(parse_stacks(_lines(launch.log_file, launch.log_cut or 0, tasks_per_node)), ranks)
    if odd is None:
        return "", None, None
    return _sentence(odd), odd.ranks[0], states.get(odd.ranks[0], (None, ""))[0]


def _sentence(odd: OddRanks) -> str:
    first = ", ".join(str(rank) for rank in odd.ranks[:4]) + (" and others" if len(odd.ranks) > 4 else "")
    who = f"rank {first}" if len(odd.ranks) == 1 else f"ranks {first}"
    where = f"in {odd.where}" if odd.where is not None else "where no Python stack could be had"
    return f"{who} stood {where}, the others in {odd.others}" if odd.others else f"{who} stood {where}"


def _lines(log: Path, start: int, tasks_per_node: int) -> list[tuple[int, str]]:
    try:
        with log.open("rb") as stream:
            stream.seek(start)
            data = stream.read(_MAX_DUMP)
    except OSError:
        return []
    split = (split_prefix(line[:_LONGEST_LINE].decode("utf-8", "replace")) for line in data.splitlines())
    return [(rank, line.body) for line in split if (rank := find_rank(line, tasks_per_node)) is not None]
