"""Numbered parts of one whole: whether all of them are there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from slurmtrain.checkpoints.jsonfile import load_json
from slurmtrain.checkpoints.model import Corrupt, Incomplete, Reading

_OF = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)")


def find_missing_part(names: Iterable[str]) -> str | None:
    """The first missing one of files called ``…-00001-of-00004…``, counted from 0 or from 1."""
    groups: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        found = _OF.fullmatch(name)
        if found:
            groups.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    for (before, total, after), numbers in groups.items():
        wanted = int(total)
        if len(numbers) < min(wanted, 100_000):
            first = 0 if 0 in numbers else 1
            gap = next(n for n in range(first, first + wanted) if n not in numbers)
            return f"{before}{gap:0{len(total)}d}-of-{total}{after}"
    return None


def read_index(path: Path, reading: Reading) -> set[str]:
    """The shards that a Hugging Face ``….index.json`` names; none where it is too large. Raises ``Corrupt``."""
    index = load_json(path, reading)
    if index is None:
        return set()
    try:
        shards = {str(name) for name in index["weight_map"].values()}
    except (KeyError, TypeError, AttributeError) as exc:
        raise Corrupt(f"{path.name} is damaged") from exc
    outside = next((name for name in shards if "/" in name or name in ("", ".", "..")), None)
    if outside is not None:
        raise Corrupt(f"{path.name} names {outside[:80]!r}, which lies outside of the checkpoint")
    return shards


def check_all_there(folder: Path, wanted: Iterable[str], names: Iterable[str]) -> None:
    """Raises ``Incomplete`` for the first name that the folder does not have."""
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise Incomplete(
            f"{folder.name} has lost {missing[0][:80]!r}" + (f" and {len(missing) - 1} more" * (len(missing) > 1))
        )
