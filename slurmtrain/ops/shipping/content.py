"""The bytes of a file as they are sent: masked where it is text, and only what was there when it was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from slurmtrain.errors import SlurmtrainError
from slurmtrain.evidence.secrets import Masker
from slurmtrain.hosts.files import open_file
from slurmtrain.ops.shipping.items import Source, look_at
from slurmtrain.ops.shipping.known import KnownWords
from slurmtrain.remote.model import PART, Body, part_bytes, regroup

_READ = 1 << 18
_CONTEXT = 1 << 19  # read before a part for what reaches over several lines: a private key
_LONGEST_LINE = 2 * PART  # without an end, a part ends anyway


class SourceGoneError(SlurmtrainError):
    """A file that was to be sent cannot be read any more."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Hides secrets: those that this host knows, what looks like one, and those that the job knew."""

    masker: Masker
    known: KnownWords

    def stream(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return self.masker.stream(self.known.hide(pieces))


def text_body(path: Path, upto: int, mask: Mask, is_same: Callable[[], bool]) -> Body:
    """The first ``upto`` bytes of a text, masked."""
    size = part_bytes(upto)
    return Body(lambda: regroup(mask.stream(read_range(path, 0, upto)), size), size, is_same=is_same)


def binary_body(path: Path, source: Source) -> Body:
    """All bytes of a file as they are."""
    size = part_bytes(source.size)
    return Body(
        lambda: regroup(read_range(path, 0, source.size), size), size, False, is_same=lambda: look_at(path) == source
    )


def part_of_text(path: Path, start: int, end: int, mask: Mask) -> bytes:
    """Lines of a growing text, masked as they would be in the whole of it."""
    before = max(0, start - _CONTEXT)
    whole = b"".join(mask.stream(read_range(path, before, end)))
    context = b"".join(mask.stream(read_range(path, before, start)))
    if whole.startswith(context):
        return whole[len(context) :]
    same = next((at for at, (a, b) in enumerate(zip(whole, context, strict=False)) if a != b), len(context))
    return whole[same:]  # a secret lies across the cut: rather too much than a piece of it


def read_range(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Bytes ``start`` to ``end`` of a file. Raises ``SourceGoneError``, also for a file that has become shorter."""
    try:
        with open_file(path) as stream:
            stream.seek(start)
            left = end - start
            while left > 0:
                data = stream.read(min(_READ, left))
                if not data:
                    raise SourceGoneError(f"{path} has become shorter")
                left -= len(data)
                yield data
    except OSError as exc:
        raise SourceGoneError(f"cannot read {path}: {exc.strerror or exc}") from exc


def last_line_end(path: Path, size: int) -> int:
    """Where the last whole line within ``size`` ends: half a line may hold half a secret."""
    try:
        with open_file(path) as stream:
            at = size
            while at > 0 and size - at < _LONGEST_LINE:
                start = max(0, at - _READ)
                found = _read_at(stream, start, at).rfind(b"\n")
                if found >= 0:
                    return start + found + 1
                at = start
    except OSError as exc:
        raise SourceGoneError(f"cannot read {path}: {exc.strerror or exc}") from exc
    return 0 if at == 0 else size


def next_line_end(path: Path, start: int, end: int) -> int:
    """Where the first line that ends behind ``start`` ends; ``end``, or a bound, where none does."""
    at = start
    try:
        with open_file(path) as stream:
            while at < min(end, start + _LONGEST_LINE):
                piece = _read_at(stream, at, min(end, at + _READ))
                found = piece.find(b"\n")
                if found >= 0:
                    return at + found + 1
                if not piece:
                    break
                at += len(piece)
    except OSError as exc:
        raise SourceGoneError(f"cannot read {path}: {exc.strerror or exc}") from exc
    return min(at, end)


def _read_at(stream: BinaryIO, start: int, end: int) -> bytes:
    stream.seek(start)
    return stream.read(end - start)
