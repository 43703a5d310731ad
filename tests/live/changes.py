"""When to ask ``slurmtrain status`` again: each time costs as much CPU as the training that it asks about."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

ASK_S = 1.5  # Slurm may know something new while nothing is written down


class Changes:
    """What is written down of a run: whether it has grown since it was last looked at, or that is long ago."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: dict[str, tuple[int, int]] | None = None
        self._looked = 0.0

    def due(self) -> bool:
        now = {path: (info.st_size, info.st_mtime_ns) for path, info in self._files()}
        if now == self._seen and time.monotonic() - self._looked < ASK_S:
            return False
        self._seen, self._looked = now, time.monotonic()
        return True

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        """What vanishes meanwhile is passed over."""
        for folder in ("journal", "attempts", "submissions"):
            for place, _, names in os.walk(self._path / folder):
                for name in names:
                    path = f"{place}/{name}"
                    with contextlib.suppress(OSError):
                        yield path, os.stat(path)  # noqa: PTH116 - hundreds of them, five times a second
