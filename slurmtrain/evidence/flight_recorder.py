"""Dumps of torch's flight recorder: which rank did not enter which collective, who called something else.

The recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp) keeps the last collectives of each rank, and its watchdog
writes them as a pickle of plain values when one times out: ``pg_status`` (process group → numbers of the last
collective that was enqueued, started, completed), ``pg_config`` (its ranks) and ``entries``. Pickles can run code: they
are read with a reader that makes inert objects of everything.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.model import Corrupt
from slurmtrain.checkpoints.unpickle import read_pickle

PREFIX = "flight-rank-"  # the launch script tells torch; the rank follows
MAX_DUMP = 64 << 20
_SHOWN_RANKS = 8
_MOST_FINDINGS = 20
_INTERNAL = re.compile(r"/torch/(?:distributed|_|nn/parallel|autograd|utils)|<frozen|/contextlib\.py$")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective as one rank called it. ``where`` is the line of the program outside of torch, "" if unknown."""

    name: str
    sizes: str
    where: str


@dataclass(slots=True)
class Group:
    """What one rank recorded of one process group; numbers of collectives, -1 where none is known."""

    enqueued: int = -1
    completed: int = -1
    calls: dict[int, Call] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's record: process group → what it did there; how many ranks its largest group has, 0 if not told."""

    groups: Mapping[str, Group]
    world: int = 0


def read_dump(path: Path) -> Dump:
    """Raises ``OSError``, and ``ValueError`` for what is no dump."""
    with path.open("rb") as stream:
        data = stream.read(MAX_DUMP + 1)
    if len(data) > MAX_DUMP:
        raise ValueError(f"it is larger than {MAX_DUMP >> 20} MiB")
    try:
        value = read_pickle(data, "it")
    except (Corrupt, MemoryError, RecursionError) as exc:
        raise ValueError(str(exc) or "it cannot be read") from exc
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise ValueError("it is no record of collectives")
    return parse_dump(value)


def parse_dump(value: Mapping[Any, Any]) -> Dump:
    groups: dict[str, Group] = defaultdict(Group)
    for name, status in _items(value.get("pg_status")):
        groups[name].enqueued = _number(status, "last_enqueued_collective")
        groups[name].completed = _number(status, "last_completed_collective")
    for entry in value["entries"]:
        if not isinstance(entry, dict) or entry.get("is_p2p") is True:
            continue
        group, number = groups[_group_of(entry)], _number(entry, "collective_seq_id")
        group.calls[number] = _call(entry)
        group.enqueued = max(group.enqueued, number)
        if entry.get("state") == "completed":
            group.completed = max(group.completed, number)
    sizes = [len(re.findall(r"\d+", str(config.get("ranks")))) for _, config in _items(value.get("pg_config"))]
    return Dump(dict(groups), max(sizes, default=0))


def find_missing(dumps: Mapping[int, Dump], *, complete: bool = True) -> list[str]:
    """Sentences; rank → its dump. The group with the most ranks comes first.

    ``complete``: all dumps that there are; ranks without one are then named.
    """
    world = max((dump.world for dump in dumps.values()), default=0) if complete else 0
    told: list[str] = []
    names = Counter(name for dump in dumps.values() for name in dump.groups)
    for name, _ in names.most_common():
        told += _judge(name, {rank: dump.groups[name] for rank, dump in dumps.items() if name in dump.groups})
    silent = sorted(set(range(world)) - set(dumps))
    if silent:
        told.append(f"{_name_ranks(silent)} left no record: dead, or stuck outside of collectives")
    return told[:_MOST_FINDINGS]


def _judge(name: str, groups: Mapping[int, Group]) -> Iterator[str]:
    title = "the default process group" if name in ("", "0") else f"process group {name}"
    newest = max(group.enqueued for group in groups.values())
    behind = sorted(rank for rank, group in groups.items() if group.enqueued < newest)
    if behind:
        first = min(groups[rank].enqueued for rank in behind) + 1
        missing = [rank for rank in behind if groups[rank].enqueued < first]
        waiting = [rank for rank, group in groups.items() if group.enqueued >= first]
        call = next((groups[rank].calls[first] for rank in waiting if first in groups[rank].calls), None)
        where = f" ({call.where})" if call and call.where else ""
        yield (
            f"{_name_ranks(missing)} did not enter {call.name if call else 'collective'} {first} of {title}, in which "
            f"{_name_ranks(sorted(waiting))} wait{'s' if len(waiting) == 1 else ''}{where}"
        )
    yield from _mismatches(title, groups)


def _mismatches(title: str, groups: Mapping[int, Group]) -> Iterator[str]:
    """The first collective that ranks called differently: the programs have diverged."""
    for number in sorted({number for group in groups.values() for number in group.calls}):
        calls = {rank: group.calls[number] for rank, group in groups.items() if number in group.calls}
        kinds = Counter((call.name, call.sizes) for call in calls.values())
        if len(kinds) < 2:
            continue
        usual = kinds.most_common(1)[0][0]
        others = sorted(rank for rank, call in calls.items() if (call.name, call.sizes) != usual)
        odd = calls[others[0]]
        # all_to_all and gathers may have other sizes on each rank
        if odd.name == usual[0] and ("all_to_all" in odd.name or "gather" in odd.name or "scatter" in odd.name):
            continue
        yield (
            f"in collective {number} of {title} {_name_ranks(others)} called {odd.name} {odd.sizes}"
            f"{f' ({odd.where})' if odd.where else ''}, the others {usual[0]} {usual[1]}"
        )
        return


def _name_ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:_SHOWN_RANKS])
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _group_of(entry: Mapping[Any, Any]) -> str:
    group = entry.get("process_group")
    return str(group[0])[:100] if isinstance(group, (tuple, list)) and group else str(entry.get("pg_id", ""))[:100]


def _call(entry: Mapping[Any, Any]) -> Call:
    sizes = entry.get("input_sizes")
    return Call(
        name=str(entry.get("profiling_name", "?")).rpartition(":")[2][:100],
        sizes=str(sizes)[:100] if isinstance(sizes, (list, tuple)) else "",
        where=_where(entry.get("frames")),
    )


def _where(frames: object) -> str:
    """The innermost line that is the program's own."""
    for frame in frames if isinstance(frames, list) else []:
        if isinstance(frame, dict) and not _INTERNAL.search(str(frame.get("filename", ""))):
            return f"{Path(str(frame.get('filename', '?'))).name[:100]}:{frame.get('line', '?')}"
    return ""


def _items(value: object) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    for name, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, dict):
            yield str(name)[:100], item


def _number(value: Mapping[Any, Any], name: str) -> int:
    found = value.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else -1
