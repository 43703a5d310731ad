"""Tiny files that jobs drop into ``<store>/inbox`` to wake the watcher. Losing one costs only the poll interval."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurmtrain.store.rundir import RunDir


def inbox_of(store: Path) -> Path:
    return store / "inbox"


def drop(run: RunDir, word: str) -> None:
    """Wake the watcher about a run; never raises."""
    folder = inbox_of(run.path.parent.parent)
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o755, exist_ok=True)
        descriptor = os.open(folder / f"{run.run_id}.{word}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.close(descriptor)


def empty(store: Path) -> int:
    """Take away what lies in the inbox; how many files there were."""
    count = 0
    with contextlib.suppress(OSError):
        for path in inbox_of(store).iterdir():
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
    return count
