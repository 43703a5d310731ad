"""Waking early: files that jobs drop into the inbox, seen through watchdog.

inotify sees only what this host writes, so on network file systems the polling observer is used; which one a store
needs is read from the type of its file system.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from types import TracebackType

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver
from watchdog.observers.polling import PollingObserver

from slurmtrain.store.filesystem import is_local

_POLL_S = 5.0


class InboxBell(FileSystemEventHandler):
    """Rings when something lands in a directory; falls silent, not over, where it cannot be watched."""

    def __init__(self, inbox: Path) -> None:
        self._inbox = inbox
        self._rang = threading.Event()
        self._observer: BaseObserver | None = None

    def __enter__(self) -> InboxBell:
        with contextlib.suppress(OSError):
            self._inbox.mkdir(parents=True, exist_ok=True)
            observer: BaseObserver = Observer() if is_local(self._inbox) else PollingObserver(timeout=_POLL_S)
            observer.schedule(self, str(self._inbox), recursive=False)
            observer.start()
            self._observer = observer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(timeout=2 * _POLL_S)

    def on_created(self, event: FileSystemEvent) -> None:
        self._rang.set()

    def ring(self) -> None:
        """Wake the waiting thread for another reason (a signal)."""
        self._rang.set()

    def wait(self, seconds: float) -> bool:
        """Wait at most this long; True if the bell rang."""
        rang = self._rang.wait(seconds)
        self._rang.clear()
        return rang
