"""Small files that a person wrote: job files and settings."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.config.nodes import shown
from slurmtrain.errors import NotFoundError, SpecError

MAX_BYTES = 1 << 20


def read_text(path: Path) -> str:
    """A small text file; every way in which that can fail is one sentence."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {shown(str(path), 200)}") from None
    except IsADirectoryError:
        raise NotFoundError(f"{shown(str(path), 200)} is a directory, not a file") from None
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc)
        raise SpecError(f"cannot read {shown(str(path), 200)}: {reason}") from exc
    if len(data) > MAX_BYTES:
        raise SpecError(f"{path} is larger than 1 MiB: this is no job file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise SpecError(
            f"{path}:{line}: not valid UTF-8 (byte {data[exc.start]:#04x}): save the file as UTF-8"
        ) from None
