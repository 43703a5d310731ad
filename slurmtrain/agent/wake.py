"""Sleeping until something happens: a signal, the end of a child, or the time."""

from __future__ import annotations

import contextlib
import os
import select
import signal


class Wake:
    """A pipe into which the interpreter writes at every signal that has a handler, SIGCHLD among them."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def sleep(self, seconds: float, descriptor: int | None = None) -> None:
        """Sleep, at most this long; a signal that came before or comes meanwhile ends it, and so does input."""
        with contextlib.suppress(OSError):
            inputs = [self._read] if descriptor is None else [self._read, descriptor]
            select.select(inputs, [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
