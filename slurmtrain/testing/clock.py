"""A clock that only moves when a test says so."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


class ManualClock:
    """Aware UTC time, moved by hand."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)) -> None:
        self._now = start

    def __call__(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        """Move forward to ``moment``; time never runs back."""
        if moment < self._now:
            raise ValueError(f"the clock is at {self._now.isoformat()} and cannot go back to {moment.isoformat()}")
        self._now = moment

    def advance(self, step: timedelta) -> None:
        self.set(self._now + step)
