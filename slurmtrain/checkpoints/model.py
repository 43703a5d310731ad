"""What is said about a checkpoint, and how a format is described."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Health(Enum):
    """Whether a launch may resume from it."""

    VALID = "valid"  # complete and readable, as far as was looked
    INCOMPLETE = "incomplete"  # its save did not come to an end, or has not yet
    CORRUPT = "corrupt"  # what is there contradicts itself
    UNREADABLE = "unreadable"  # the file system or permissions refuse: nothing is known about the checkpoint
    UNKNOWN = "unknown"  # of no format that is known here
    GONE = "gone"  # deleted while it was looked at, as a training that keeps only its newest ones does


RESUMABLE = frozenset({Health.VALID, Health.UNKNOWN})
BROKEN = frozenset({Health.INCOMPLETE, Health.CORRUPT})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found. ``step`` is the one that the content tells, None where it tells none."""

    health: Health
    format: str
    detail: str = ""  # one sentence: what is wrong; of one that may be resumed from, what was not looked at, mostly ""
    step: int | None = None
    deep: bool = False  # every byte that has a checksum was read


CHECKSUM_SHARE = 0.7  # of the time: when no more is read for the sake of checksums
_MOST_LEFT_OUT = 3  # that are told


class Incomplete(Exception):  # noqa: N818 - a verdict on its way up, no error of ours
    """Raised by a format's check: the save did not come to its end."""


class Corrupt(Exception):  # noqa: N818
    """Raised by a format's check: what is there contradicts itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder that may be a checkpoint, with what is cheap to know about it."""

    path: Path
    is_dir: bool
    size: int  # bytes; of a folder 0
    head: bytes  # the first bytes of a file
    names: frozenset[str]  # of what lies in a folder


@dataclass(slots=True)
class Reading:
    """How thoroughly to read: what a check may still spend, and what it learnt on the way."""

    deep: bool
    bytes_left: int  # that may be read for the sake of checksums
    limit_s: float  # without end where it is deep
    complete: bool = True  # False once something was left unread that a deeper check would read
    step: int | None = None
    left_out: list[str] = field(default_factory=list)  # what was not looked at whole, in words
    _began: float = field(default_factory=time.monotonic)

    def out_of_time(self, share: float = 1.0) -> bool:
        """Whether this share of the time has passed."""
        return time.monotonic() - self._began > share * self.limit_s

    def leave_out(self, words: str) -> None:
        """Remember what was not looked at whole; it says nothing against a checkpoint."""
        self.complete = False
        if len(self.left_out) < _MOST_LEFT_OUT:
            self.left_out.append(words)

    def may_read(self, size: int) -> bool:
        """Whether ``size`` more bytes may be read for a checksum; remembers when not."""
        if not self.out_of_time(CHECKSUM_SHARE) and (self.deep or size <= self.bytes_left):
            self.bytes_left -= size
            return True
        self.complete = False
        return False


@dataclass(frozen=True, slots=True)
class Format:
    """One way in which a program writes checkpoints.

    ``check`` returns quietly for a checkpoint that is whole and raises ``Incomplete``, ``Corrupt`` or ``OSError``.
    """

    name: str
    matches: Callable[[Entry], bool]
    check: Callable[[Entry, Reading], None]
