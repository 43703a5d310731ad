"""JSON files of a checkpoint: parsed where they are of a usual size, else known by their beginning and their end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.model import Corrupt, Reading

MAX_JSON = 128 << 20  # parsed, it takes some ten times as much memory
_END = 4096
_GLOBAL_STEP = re.compile(rb'"global_step"\s*:\s*(\d{1,18})\b')


def load_json(path: Path, reading: Reading, where: str = "") -> Any:
    """What it holds; None where it is too large. Raises ``Corrupt`` and ``OSError``."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        if size > MAX_JSON:
            reading.leave_out(f"{path.name} of {size >> 20} MiB not at all")
            stream.seek(size - _END)
            if stream.read().rstrip()[-1:] not in (b"}", b"]"):
                raise Corrupt(f"{path.name}{where} is damaged or was cut")
            return None
        raw = stream.read(MAX_JSON)
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"{path.name}{where} is damaged or was cut") from exc


def guess_step(path: Path) -> int | None:
    """The step near the beginning of a file that is too large to be parsed: the Trainer's is sorted by name."""
    with path.open("rb") as stream:
        found = _GLOBAL_STEP.search(stream.read(1 << 20))
    return int(found[1]) if found else None
