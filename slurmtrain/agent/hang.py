"""Noticing that a launch does nothing any more, or makes no steps, and finding out which rank holds it up."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import NamedTuple

from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.stacks import LONGEST_WAIT_S, STACKS
from slurmtrain.core.paces import find_last
from slurmtrain.core.spec import Hang, Spec, all_components
from slurmtrain.core.stacks import OddRanks, find_odd_ranks, parse_stacks
from slurmtrain.evidence.rank_states import read_states
from slurmtrain.hosts.files import open_file
from slurmtrain.logs.lines import find_rank, split_prefix
from slurmtrain.logs.step import StepTrail
from slurmtrain.store.rundir import HEARTBEAT

HUNG_GRACE_S = 2.0  # from TERM to KILL for ranks that do nothing any more
DEFAULT_S = 1800  # for a training that sends heartbeats and says nothing else about it
_LOOK_S = 30.0  # between two looks at the signs of life, at most
_LONGEST_DUMP_S, _QUIET_S = 20.0, 3.0
_LONGEST_LINE = 4096
_MAX_PAUSE_S = 86400.0  # that a training may announce
_MAX_DUMP = 64 << 20  # bytes of stacks that are read
_WORDS = {"T": "is stopped by a signal", "t": "is held by a debugger", "D": "waits in the kernel (storage or a device)"}


class Silence(NamedTuple):
    """A launch hangs: for so long nothing was heard of it, or it wrote and made no step."""

    seconds: float
    nothing_new: str  # "sign of life" or "step"


class HangWatch:
    """Looks at signs of life of one launch: its output, its heartbeat, its checkpoints; and at its steps, if asked."""

    def __init__(self, hang: Hang, launch: LaunchProcess, checkpoints: Path) -> None:
        self._hang = hang
        self._launch = launch
        self._heartbeat = launch.folder / HEARTBEAT if launch.folder is not None else None
        self._checkpoints = checkpoints
        self._seen: tuple[object, ...] = ()
        self._alive_at = self._started_at = time.monotonic()
        self._next_look = 0.0
        self._steps = StepTrail(*launch.step_log(), self._heartbeat) if hang.step_timeout_s else None
        self._stepped_at: float | None = None  # None before the first step

    def look(self) -> Silence | None:
        """What is missing, once it has been missing for too long. Cheap: looks now and then."""
        now = time.monotonic()
        if now < self._next_look:
            return None
        limit, step_limit = self._limit(), float(self._hang.step_timeout_s or 0) or None
        shortest = min((x for x in (limit, step_limit) if x is not None), default=None)
        self._next_look = now + (_LOOK_S if shortest is None else min(_LOOK_S, max(1.0, shortest / 20)))
        if shortest is None:
            return None
        paused, young = self._is_paused() or self._is_deaf(), now - self._started_at < self._hang.startup_s
        found = self._without_life(now, limit, paused=paused) or self._without_steps(now, step_limit, paused=paused)
        return None if young else found

    def _without_life(self, now: float, limit: float | None, *, paused: bool) -> Silence | None:
        if limit is None:
            return None
        seen = (*self._launch.sizes(), _changed_at(self._heartbeat), _changed_at(self._checkpoints))
        if seen != self._seen or paused:
            self._seen, self._alive_at = seen, now
        silent = now - self._alive_at
        return Silence(silent, "sign of life") if silent >= limit else None

    def _without_steps(self, now: float, limit: float | None, *, paused: bool) -> Silence | None:
        if limit is None or self._steps is None:
            return None
        if self._steps.has_moved() or (paused and self._stepped_at is not None):
            self._stepped_at = now
        standing = now - self._stepped_at if self._stepped_at is not None else 0.0
        return Silence(standing, "step") if standing >= limit else None

    def _limit(self) -> float | None:
        if self._hang.timeout_s is not None:
            return float(self._hang.timeout_s) or None
        return float(DEFAULT_S) if _changed_at(self._heartbeat) is not None else None

    def _is_deaf(self) -> bool:
        """A full store keeps signs of life from us: output until the launch ends, others until there is room again."""
        launch = self._launch
        return launch.log_is_full or (launch.log_was_full and _changed_at(self._heartbeat) is None)

    def _is_paused(self) -> bool:
        """The training had announced that nothing would be heard for a while."""
        if self._heartbeat is None:
            return False
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            with open_file(self._heartbeat) as stream:
                _, _, rest = stream.read(4096).partition(b" ")
            left = float(json.loads(rest).get("pause_until", 0)) - time.time()
            return 0 < left <= _MAX_PAUSE_S  # a slip (milliseconds, inf) must not end the watch for good
        return False


def _changed_at(path: Path | None) -> float | None:
    try:
        return path.stat().st_mtime if path is not None else None
    except OSError:
        return None


def wait_for_stacks(launch: LaunchProcess, at: float) -> None:
    """Until the launch is over, or has written nothing more for a while after the moment of the stacks.

    ``at`` is in seconds since the epoch, as all nodes were told; the clock may be set while it is waited for.
    """
    moment = time.monotonic() + min(max(0.0, at - time.time()), LONGEST_WAIT_S)
    size, quiet_since = launch.sizes(), moment
    while launch.poll() is None and time.monotonic() < moment + _LONGEST_DUMP_S:
        time.sleep(0.5)
        seen, now = launch.sizes(), time.monotonic()
        if seen != size:
            size, quiet_since = seen, max(now, moment)
        if now - quiet_since >= _QUIET_S:
            return


def explain_hang(launch: LaunchProcess, spec: Spec) -> tuple[str, int | None, str | None]:
    """A sentence about who holds the launch up, the rank and its node; an empty sentence where nobody stands out."""
    states = read_states(launch.folder) if launch.folder is not None else {}
    for rank, known in sorted(states.items()):
        if known.state in _WORDS:
            words = f"rank {rank} on {known.node} {_WORDS[known.state]}, and the others wait for it"
            return words, rank, known.node
    ranks = sum(part.nodes * part.tasks_per_node for part in all_components(spec))
    tasks_per_node = spec.resources.tasks_per_node if spec.launcher == "torchrun" else 0
    lines = _lines(launch.log_file, launch.log_cut or 0, tasks_per_node)
    for path in launch.node_logs():
        lines += _lines(path, launch.node_cuts.get(path.name, 0), tasks_per_node)
    stacks = parse_stacks(lines)
    for path in sorted(launch.folder.glob(f"{STACKS}*.txt")) if launch.folder is not None else ():
        stacks |= parse_stacks(_lines(path, 0, 0))
    odd = find_odd_ranks(stacks, ranks)
    last = find_last({rank: known.step for rank, known in states.items() if known.step is not None})
    if odd is None and last is not None:
        rank, step, others = last
        return f"rank {rank} was at step {step}, the others had come to {others}", rank, states[rank].node
    if odd is None:
        return "", None, None
    first = states.get(odd.ranks[0])
    return _sentence(odd), odd.ranks[0], first.node if first is not None else None


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
