"""Megatron-LM: ``iter_0001000/mp_rank_00_001/…``, and a tracker beside it that is written last."""

from __future__ import annotations

import re
from pathlib import Path

from slurmtrain.checkpoints.dcp import check_dcp, is_dcp
from slurmtrain.checkpoints.model import Entry, Incomplete, Reading
from slurmtrain.checkpoints.pointers import TRACKER

_FOLDER = re.compile(r"iter_(\d+)")
_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")


def is_megatron(entry: Entry) -> bool:
    return _FOLDER.fullmatch(entry.path.name) is not None and (
        is_dcp(entry) or any(_RANK.fullmatch(name) for name in entry.names) or (entry.path.parent / TRACKER).exists()
    )


def check_megatron(entry: Entry, reading: Reading) -> None:
    """Not newer than the tracker, and a folder for each part of the model. The files are checked one by one."""
    found = _FOLDER.fullmatch(entry.path.name)
    reading.step = int(found[1]) if found else None
    tracked = read_tracker(entry.path.parent / TRACKER)
    if reading.step is not None and tracked is not None and reading.step > tracked:
        raise Incomplete(f"{entry.path.name} is newer than the {tracked} in {TRACKER}, which is written last")
    if is_dcp(entry):
        check_dcp(entry, reading)
        return
    _check_ranks(entry)


def read_tracker(path: Path) -> int | None:
    """The iteration that the tracker names; None where there is no tracker or it says ``release``."""
    try:
        text = path.read_bytes()[:40].decode("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def _check_ranks(entry: Entry) -> None:
    ranks = [tuple(int(n) for n in found.groups() if n) for name in entry.names if (found := _RANK.fullmatch(name))]
    if not ranks:
        raise Incomplete(f"{entry.path.name} has no part of the model")
    for axis in range(max(map(len, ranks))):
        numbers = {rank[axis] for rank in ranks if len(rank) > axis}
        missing = next((n for n in range(max(numbers)) if n not in numbers), None)
        if missing is not None:
            raise Incomplete(
                f"{entry.path.name} lacks part {missing} of the model ({['tensor', 'pipeline', 'expert'][axis]})"
            )
    sizes = [len({rank[axis] for rank in ranks}) for axis in range(max(map(len, ranks)))]
    wanted = 1
    for size in sizes:
        wanted *= size
    if len(ranks) < wanted and len({len(rank) for rank in ranks}) == 1:
        raise Incomplete(f"{entry.path.name} has {len(ranks)} parts of the model of {wanted}")
