"""The end of a stretch of a log that may grow meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

from slurmtrain.hosts.files import open_file


def read_end(path: Path, start: int, end: int | None, most: int) -> tuple[bytes, float]:
    """At most ``most`` bytes up to ``end`` (None: the end of the file), none before ``start``; when it was written to.

    Raises ``OSError``.
    """
    with open_file(path) as stream:
        stop = end if end is not None else stream.seek(0, 2)
        begin = max(start, stop - most)
        stream.seek(begin)
        return stream.read(max(0, stop - begin)), os.fstat(stream.fileno()).st_mtime
