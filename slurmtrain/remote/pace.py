"""How fast is sent, and how long a storage that does not answer is waited for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from slurmtrain.errors import RemoteBusyError

_T = TypeVar("_T")
_BURST_S = 1.0
_FIRST_S = 1.0
_LONGEST_S = 60.0


class StoppedError(Exception):
    """Somebody asked to leave; what was begun is taken up again later."""


class Pace:
    """A token bucket, and patience. ``stop`` may be called from a signal handler or another thread."""

    def __init__(self, bytes_per_s: float, patience_s: float, tell: Callable[[str], None] = lambda _text: None) -> None:
        self._rate = bytes_per_s
        self._patience_s = patience_s
        self._tell = tell
        self._stopped = threading.Event()
        self._ready_at = 0.0  # when what was sent so far has been paid for

    def stop(self) -> None:
        """Have whoever sends leave at the next chance."""
        self._stopped.set()

    def rearm(self) -> None:
        """Go on once more, until the next ``stop``."""
        self._stopped.clear()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def sleep(self, seconds: float) -> None:
        """Raises ``StoppedError`` as soon as somebody asked to leave."""
        if self._stopped.wait(max(0.0, seconds)):
            raise StoppedError

    def take(self, count: int) -> None:
        """Wait until ``count`` more bytes may be sent: on average no more than the rate since the last pause."""
        now = time.monotonic()
        self.sleep(self._ready_at - now)
        self._ready_at = max(self._ready_at, time.monotonic() - _BURST_S) + count / self._rate

    def patiently(self, act: Callable[[], _T]) -> _T:
        """Do it again, later and later, while the storage is busy; raises its error when patience is over."""
        deadline = time.monotonic() + self._patience_s
        pause = _FIRST_S
        while True:
            if self.stopped:
                raise StoppedError
            try:
                return act()
            except RemoteBusyError as exc:
                if time.monotonic() + pause > deadline:
                    raise
                self._tell(str(exc))
                self.sleep(pause * random.uniform(0.7, 1.3))  # noqa: S311 - spreads load, protects nothing
                pause = min(_LONGEST_S, pause * 2)
