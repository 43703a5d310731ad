"""Folders of the Hugging Face Trainer (and of ``save_pretrained``): state as JSON, weights in one file or in shards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.checkpoints.jsonfile import guess_step, load_json
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.shards import check_all_there, find_missing_part, read_index

_WEIGHTS = re.compile(
    r"(?:adapter_)?(?:model|pytorch_model|tf_model|flax_model)\S*\.(?:safetensors|bin|h5|msgpack)|pytorch_model_fsdp_\d+|global_step\d+"
)
_STATE = "trainer_state.json"
_OPTIMIZER = "optimizer.pt"  # without it the Trainer goes on, with moments that begin anew
_NAME = re.compile(r"checkpoint-\d{1,18}", re.ASCII)


def is_trainer(entry: Entry) -> bool:
    return _STATE in entry.names or any(name.endswith(".index.json") for name in entry.names) or (
        "config.json" in entry.names and any(_WEIGHTS.fullmatch(name) for name in entry.names)
    ) or (_NAME.fullmatch(entry.path.name) is not None and _has_trainers_neighbour(entry.path))  # fmt: skip


def _has_trainers_neighbour(path: Path) -> bool:
    """A save that was cut off early has nothing of the Trainer's yet; the checkpoints beside it have."""
    return any(True for _ in _neighbours(path))


def _neighbours(path: Path) -> Iterator[Path]:
    try:
        for state in path.parent.glob(f"checkpoint-*/{_STATE}"):
            if _NAME.fullmatch(state.parent.name) and state.parent != path:
                yield state.parent
    except OSError:
        return


def _had_before(path: Path, name: str) -> bool:
    """Whether a checkpoint of an earlier step has this file: of old ones a person may have removed it."""
    step = int(path.name.rpartition("-")[2])
    return any(int(old.name.rpartition("-")[2]) < step and (old / name).exists() for old in _neighbours(path))


def check_trainer(entry: Entry, reading: Reading) -> None:
    """The trainer's state can be read, weights are there and all of their shards."""
    if _STATE in entry.names:
        reading.step = _read_step(entry, reading)
    indexes = [name for name in entry.names if name.endswith(".index.json")]
    for name in indexes:
        check_all_there(entry.path, read_index(entry.path / name, reading), entry.names)
    missing = find_missing_part(entry.names)
    if missing is not None:
        raise Incomplete(f"{entry.path.name} has lost {missing[:80]!r}")
    if not indexes and not any(_WEIGHTS.fullmatch(name) for name in entry.names):
        raise Incomplete(f"{entry.path.name} has no weights")
    if _NAME.fullmatch(entry.path.name) and _STATE not in entry.names:
        raise Incomplete(f"{entry.path.name} has no {_STATE}, which is written last")
    if _NAME.fullmatch(entry.path.name) and _OPTIMIZER not in entry.names and _had_before(entry.path, _OPTIMIZER):
        raise Incomplete(f"{entry.path.name} has lost {_OPTIMIZER!r}, which the checkpoints before it have")


def _read_step(entry: Entry, reading: Reading) -> int | None:
    state = load_json(entry.path / _STATE, reading, f" in {entry.path.name}")
    if state is None:
        return guess_step(entry.path / _STATE)
    try:
        step = state["global_step"]
    except (KeyError, TypeError) as exc:
        raise Corrupt(f"{_STATE} in {entry.path.name} is damaged or was cut") from exc
    return step if isinstance(step, int) else None
