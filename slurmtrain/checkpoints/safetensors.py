"""safetensors: eight bytes of length, a JSON header with each tensor's place, the tensors without a gap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

_MAX_HEADER = 100_000_000  # the limit of the format's own reader


def is_safetensors(entry: Entry) -> bool:
    return entry.path.name.endswith(".safetensors") or (entry.head[8:10] in (b'{"', b"{}") and _length(entry) > 1)


def _length(entry: Entry) -> int:
    length = int.from_bytes(entry.head[:8], "little")
    return length if length <= min(entry.size, _MAX_HEADER) else 0


def check_safetensors(entry: Entry, _reading: Reading) -> None:
    """The header can be read and the file is as long as it says."""
    check_safetensors_file(entry.path, entry.size)


def check_safetensors_file(path: Path, size: int) -> None:
    """As ``check_safetensors``, of one shard."""
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or 8 + length > size:
            raise Incomplete(f"{path.name} ends before its header does")
        if length > _MAX_HEADER:
            raise Corrupt(f"{path.name} says that its header has {length} bytes")
        raw = stream.read(length)
    wanted = 8 + length + _end_of_tensors(path, raw)
    if wanted > size:
        raise Incomplete(f"{path.name} has {size} bytes of {wanted}")
    if wanted < size:
        raise Corrupt(f"{path.name} has {size} bytes, but its header tells of {wanted}")


def _end_of_tensors(path: Path, raw: bytes) -> int:
    try:
        header: Any = json.loads(raw)
        places = [value["data_offsets"] for key, value in header.items() if key != "__metadata__"]
        return max((int(end) for _, end in places), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise Corrupt(f"the header of {path.name} is damaged") from exc
