"""Masking what a collector has left, whoever wrote it: nothing in a scene may give a secret away."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from slurmtrain.evidence.folder import walk
from slurmtrain.evidence.secrets import Masker
from slurmtrain.hosts.files import open_file

_LOOKED_AT = 8192
_CHUNK = 1 << 18


def mask_folder(folder: Path, masker: Masker) -> None:
    """Mask every text file below. One that cannot be masked, as the disk is full, is removed."""
    for path, info in list(walk(folder)):
        if stat.S_ISREG(info.st_mode) and info.st_size:
            try:
                _mask_file(path, masker)
            except OSError:
                with contextlib.suppress(OSError):
                    path.unlink()


def _mask_file(path: Path, masker: Masker) -> None:
    """Files with a NUL byte at their beginning are no text and stay."""
    with open_file(path, follow=False) as source:
        if b"\0" in source.read(_LOOKED_AT):
            return
        source.seek(0)
        masked = path.with_name(f".{path.name[:100]}.masked")
        descriptor = os.open(masked, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as target:
                target.writelines(masker.stream(_chunks(source)))
            masked.replace(path)
        except OSError:
            masked.unlink(missing_ok=True)
            raise


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while data := stream.read(_CHUNK):
        yield data
