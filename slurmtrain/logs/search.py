"""Looking for a person's pattern in lines of any kind, in bounded time."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from slurmtrain.errors import UsageError
from slurmtrain.logs.follow import last_redraw
from slurmtrain.logs.lines import strip_ansi

MAX_PATTERN = 1000  # characters
LOOK = 8192  # bytes at the beginning and at the end of a line that are searched
TICK_S = 1.0


class SlowPatternError(UsageError):
    """One line kept the pattern busy for too long."""


class LineSearch:
    """A regular expression of Python's ``re`` that somebody typed.

    Of a line its text without colours is searched, of a progress bar the state that is shown, of a very long line the
    first and the last 8 KiB. Raises ``UsageError`` for what is no pattern.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise UsageError(f"the pattern is longer than {MAX_PATTERN} characters")
        try:
            self._pattern = re.compile(pattern)
        except (re.error, RecursionError, OverflowError, ValueError) as exc:
            raise UsageError(f"the pattern {pattern[:60]!r} cannot be read: {exc}") from None
        self._searches = self._seen = 0
        self._busy = False

    def matches(self, line: bytes) -> bool:
        """Whether the line holds the pattern. Inside ``bounded`` raises ``SlowPatternError`` after 2 s."""
        shown = strip_ansi(last_redraw(line)).rstrip(b"\r\n")
        parts = [shown] if len(shown) <= 2 * LOOK else [shown[:LOOK], shown[-LOOK:]]
        self._searches += 1
        self._busy = True
        try:
            return any(self._pattern.search(part.decode("utf-8", "replace")) for part in parts)
        finally:
            self._busy = False

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Watch the searches inside the block by an alarm, which ``re`` looks for while it backtracks.

        Alarms belong to the main thread; in any other there is no bound.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, TICK_S, TICK_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        """A search that was busy at the last tick, too, is stuck."""
        if self._busy and self._searches == self._seen:
            shown = self._pattern.pattern[:60]
            raise SlowPatternError(
                f"the pattern {shown!r} takes too long on one line: it repeats a repetition, or begins with one; "
                "write it simpler"
            )
        self._seen = self._searches
