"""Checkpoint formats of a site's or a user's own: one Python file each, in a folder ``formats`` of the search order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from slurmtrain.checkpoints.apart import try_format
from slurmtrain.errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,40}", re.ASCII)
_MAX_BYTES = 256 << 10
_MAX_FORMATS = 50


def load_formats(folders: Sequence[Path]) -> dict[str, str]:
    """Name → source; of two files of one name the first counts. Each was loaded once, in a process of its own.

    Raises ``SpecError`` that names the file: a run with a format that does not work would trust no checkpoint.
    """
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            if not _NAME.fullmatch(path.stem):
                raise SpecError(f"{path}: the name of a checkpoint format has letters, digits, - and _ only")
            found.setdefault(path.stem, _read(path))
    if len(found) > _MAX_FORMATS:
        raise SpecError(f"there are {len(found)} checkpoint formats in {folders[0]} and others; at most {_MAX_FORMATS}")
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
        source = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SpecError(f"cannot read the checkpoint format {path}: {exc}") from exc
    if len(data) > _MAX_BYTES:
        raise SpecError(f"the checkpoint format {path} is larger than {_MAX_BYTES >> 10} KiB")
    why = try_format(path.stem, source)
    if why is not None:
        raise SpecError(f"{path}: {why}; it needs matches(path) and check(path, deep)")
    return source
