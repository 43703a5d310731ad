"""A bound on how long a log may be looked at: a single bad pattern must never keep a job's nodes.

The standard library's ``re`` looks for signals while it backtracks, so an alarm ends even a search that would take for
ever. Alarms belong to the main thread; in any other thread there is no bound.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class DeadlineError(Exception):
    """The time is over; what was found so far is lost."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise ``DeadlineError`` inside the block after so many seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(_number: int, _frame: FrameType | None) -> None:
        raise DeadlineError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
