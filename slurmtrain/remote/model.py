"""What remote storage can do for us. Keys are relative to the URL, with ``/`` between their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

PART = 8 << 20  # bytes sent in one go; S3 takes no smaller parts than 5 MiB
_MAX_PARTS = 10_000  # of one object of S3's
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """One object as it was sent."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Body:
    """The content of an object, to be read once.

    ``chunks`` gives pieces of ``part_bytes``, the last one shorter. ``is_same`` says, once all were read, whether what
    they were read from is still what it was; otherwise nothing appears remotely.
    """

    chunks: Callable[[], Iterator[bytes]]
    part_bytes: int = PART
    is_text: bool = True
    is_same: Callable[[], bool] = lambda: True


class Remote(Protocol):
    """A folder in some storage. Methods raise ``RemoteBusyError`` for what may pass, and ``RemoteError``."""

    @property
    def url(self) -> str:
        """Where the keys are."""

    def find(self, prefix: str) -> dict[str, int]:
        """Every object below ``prefix/`` (all of them for ""): key → size in bytes."""

    def folders(self) -> list[str]:
        """Names of the folders right below the URL."""

    def read(self, key: str, limit: int = 64 << 20) -> bytes | None:
        """The first ``limit`` bytes of an object; None where there is none."""

    def write(self, key: str, body: Body) -> Written | None:
        """Make or replace an object, which appears whole; None where the source changed meanwhile."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is fine."""

    def sweep(self, prefix: str) -> int:
        """Remove what uploads that were cut left below ``prefix/``; how many."""


def part_bytes(size: int) -> int:
    """How large the parts of an object of about ``size`` bytes are: a multiple of 1 MiB."""
    least = -(-size // (_MAX_PARTS - 1000))  # masked text may be a little longer than its source
    return max(PART, -(-least // _MIB) * _MIB)


def regroup(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The same bytes in pieces of ``size``, the last one shorter."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)
