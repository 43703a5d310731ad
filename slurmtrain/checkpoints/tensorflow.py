"""TensorFlow's checkpoints: ``NAME.index``, a table, and ``NAME.data-00000-of-00002``. A launch resumes from NAME."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.shards import find_missing_part

_PART = re.compile(r"(.+)\.(?:index|data-\d+-of-\d+)")
_FOOTER = bytes.fromhex("57fb808b247547db")  # the magic number at the end of a table


def prefix_of(name: str) -> str | None:
    """``ckpt-5`` for ``ckpt-5.index`` and its data; None for other files."""
    found = _PART.fullmatch(name)
    return found[1] if found else None


def is_tensorflow(entry: Entry) -> bool:
    """``entry.names`` are the parts of one prefix."""
    return not entry.is_dir and bool(entry.names)


def check_tensorflow(entry: Entry, _reading: Reading) -> None:
    """The table has its end, and all data files are there."""
    check_parts(entry, entry.names)


def check_parts(entry: Entry, names: Iterable[str]) -> None:
    parts = set(names)
    index = f"{entry.path.name}.index"
    if index not in parts:
        raise Incomplete(f"{entry.path.name} has no index, which is written last")
    missing = find_missing_part(parts)
    if missing is not None or len(parts) < 2:
        raise Incomplete(f"{entry.path.name} has lost {missing or 'its data'!r}")
    with (entry.path.parent / index).open("rb") as stream:
        stream.seek(0, 2)
        if stream.tell() < 48:
            raise Incomplete(f"{index} is cut off")
        stream.seek(-8, 2)
        if stream.read() != _FOOTER:
            raise Corrupt(f"{index} does not end as a table does: it is damaged or was cut")
