"""One compressed archive, written whole or not at all, readable by its owner alone."""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from slurmtrain.errors import StoreError


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive; ``name`` below the archive's folder, ``modified`` in seconds since the epoch."""

    name: str
    data: bytes
    modified: float = 0.0


def write_archive(path: Path, folder: str, members: Iterable[Member]) -> None:
    """Write ``folder``/… as a tar.gz with mode 0600, in this order. Raises ``StoreError``; then nothing is left."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as raw:
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
                    _write_members(packed, folder, members)
                raw.flush()
                os.fsync(raw.fileno())
            temporary.replace(path)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {exc.strerror or exc}") from exc


def _write_members(packed: gzip.GzipFile, folder: str, members: Iterable[Member]) -> None:
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            info = tarfile.TarInfo(f"{folder}/{member.name}")
            info.size, info.mode, info.mtime = len(member.data), 0o600, int(member.modified)
            archive.addfile(info, BytesIO(member.data))
