"""DeepSpeed: a folder for each tag with a file per rank; ``latest`` beside it is written when all are there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.archive import MAGIC, check_members, open_archive, read_torch_object
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.pointers import LATEST, read_latest
from slurmtrain.checkpoints.unpickle import find_step

_MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_(\d+)_model_states\.pt|layer_\d+-model_\d+-model_states\.pt")
_NUMBER = re.compile(r"[0-9]+")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def is_deepspeed(entry: Entry) -> bool:
    return any(_MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name) for name in entry.names)


def check_deepspeed(entry: Entry, reading: Reading) -> None:
    """A file of each rank, as many as the model's states say that there were. The files are checked one by one."""
    _check_latest(entry)
    models = [name for name in sorted(entry.names) if _MODEL.fullmatch(name)]
    if not models:
        raise Incomplete(f"{entry.path.name} has no model states")
    states = _read_states(entry, models[0], reading)
    reading.step = find_step(states)
    ranks: dict[int, set[int]] = {}
    for name in entry.names:
        if found := _OPTIMIZER.fullmatch(name):
            ranks.setdefault(int(found[2]), set()).add(int(found[1]))
    for model_rank in range(max(_count(states, "mp_world_size"), max(ranks, default=-1) + 1)):
        there = ranks.get(model_rank, set())
        wanted = max(_count(states, "dp_world_size"), max(there, default=-1) + 1) if ranks else 0
        missing = next((rank for rank in range(wanted) if rank not in there), None)
        if missing is not None:
            raise Incomplete(
                f"{entry.path.name} lacks the optimizer's state of rank {missing} (model part {model_rank})"
            )


def _check_latest(entry: Entry) -> None:
    """``latest`` is written when all ranks have saved: a folder that is newer than its tag was not finished."""
    tag = read_latest(entry.path.parent)
    mine, tagged = (_NUMBER.findall(name or "") for name in (entry.path.name, tag))
    if tag is None or tag == entry.path.name or not mine or not tagged or int(mine[-1]) <= int(tagged[-1]):
        return
    if (written := _time_of(entry.path.parent / LATEST)) is not None and written < entry.path.stat().st_mtime:
        raise Incomplete(f"{entry.path.name} is newer than {tag[:80]!r} in {LATEST}, which is written last")


def _time_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read_states(entry: Entry, name: str, reading: Reading) -> Any:
    path = entry.path / name
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            if size == 0:
                raise Incomplete(f"{name} in {entry.path.name} is empty")
            return None
    with open_archive(path, size) as archive:
        check_members(archive, reading)
        return read_torch_object(archive, name, reading)


def _count(states: Any, key: str) -> int:
    value = states.get(key) if isinstance(states, dict) else None
    if value is None:
        return 0
    if not isinstance(value, int) or not 0 <= value <= 1_000_000:
        raise Corrupt(f"the model's states say that {key} is {str(value)[:40]}")
    return value
