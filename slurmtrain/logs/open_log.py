"""Logs as people have them: files, compressed files, pipes, and folders with one file per rank."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import re
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from slurmtrain.core.findings import Findings
from slurmtrain.core.rules import RuleSet
from slurmtrain.errors import NotFoundError, SlurmtrainError, UsageError
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.rank_names import ranks_of_files
from slurmtrain.logs.scan import Finder, scan_log

MAX_FILES = 20_000
MAX_DEPTH = 6
STDIN = "-"
PIECE = 1 << 14  # small, so that a torn end costs little of what was still readable

_MAGIC = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"), (b"\x28\xb5\x2f\xfd", "zstd"))
_SKIP = re.compile(
    r"(?i)\.(?:pt|pth|bin|ckpt|safetensors|npy|npz|h5|pyc|so|png|jpe?g|pdf|zip|tar|tgz|db|sqlite|parquet|arrow|yaml|yml|toml|pyz)$"
    r"|^(?:case|events\.out).*"
)


def find_files(folder: Path) -> list[Path]:
    """The regular files of a folder that may be logs, in natural order; hidden and binary ones are left out."""
    found: list[Path] = []
    base = len(folder.parts)
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(Path(root).parts) - base >= MAX_DEPTH:
            folders.clear()
        for name in names:
            if not name.startswith(".") and not _SKIP.search(name):
                path = Path(root) / name
                if stat.S_ISREG(path.stat().st_mode if path.exists() else 0):
                    found.append(path)
        if len(found) > MAX_FILES:
            raise UsageError(f"{folder} holds more than {MAX_FILES} files; name the folder of one launch")
    return sorted(found, key=lambda path: _natural(str(path)))


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text)]


@contextmanager
def open_log(path: Path | str) -> Iterator[BinaryIO]:
    """The bytes of a log, decompressed; ``-`` is standard input.

    NotFoundError, UsageError (a folder) and SlurmtrainError (unreadable) say what is wrong.
    """
    if str(path) == STDIN:
        yield from _opened(cast(BinaryIO, sys.stdin.buffer), "standard input")
        return
    try:
        with open(path, "rb") as raw:
            if stat.S_ISCHR(os.fstat(raw.fileno()).st_mode) and not raw.isatty() and str(path) != os.devnull:
                raise UsageError(f"{path} is a device, not a log")
            yield from _opened(raw, str(path))
    except FileNotFoundError:
        raise NotFoundError(f"there is no log at {path}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder") from None
    except (OSError, EOFError, lzma.LZMAError, ValueError) as exc:
        raise SlurmtrainError(
            f"cannot read {path}: {exc.strerror if isinstance(exc, OSError) and exc.strerror else exc}"
        ) from exc


def _opened(raw: BinaryIO, name: str) -> Iterator[BinaryIO]:
    head = _Peeked(raw)
    kind = next((kind for magic, kind in _MAGIC if head.start.startswith(magic)), None)
    if kind is None:
        yield cast(BinaryIO, head)
        return
    source = cast(BinaryIO, head)
    if kind == "zstd":
        yield cast(BinaryIO, _Torn(_open_zstd(source, name)))
        return
    openers: dict[str, Any] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
    with openers[kind](source, "rb") as inner:
        yield cast(BinaryIO, _Torn(cast(BinaryIO, inner)))


def _open_zstd(raw: BinaryIO, name: str) -> BinaryIO:
    try:
        import zstandard
    except ImportError:
        raise SlurmtrainError(
            f"{name} is compressed with zstd; pipe it in: zstdcat {name} | slurmtrain classify -"
        ) from None
    return cast(BinaryIO, zstandard.ZstdDecompressor().stream_reader(raw))


class _Peeked:
    """A stream whose first bytes were looked at; works for pipes."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.start = raw.read(8) or b""
        self._left = self.start

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer than asked for only at the end."""
        if not self._left:
            return self._raw.read(size)
        if size < 0:
            data, self._left = self._left + self._raw.read(), b""
            return data
        data, self._left = self._left[:size], self._left[size:]
        return data + (self._raw.read(size - len(data)) if len(data) < size else b"")

    def seekable(self) -> bool:
        """Never: a pipe is not, and nothing needs it."""
        return False

    def readable(self) -> bool:
        """Always."""
        return True

    @property
    def closed(self) -> bool:
        """Never closed here; the owner closes the stream."""
        return False


class _Torn:
    """A compressed stream that may end too early: what could be read counts, the tear ends it."""

    def __init__(self, inner: BinaryIO) -> None:
        self._piece = getattr(inner, "read1", inner.read)
        self._torn = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes, `size` of them where there are so many; empty at the end or where the data is damaged."""
        pieces, left = [], size
        while left != 0 and not self._torn:
            try:
                piece = self._piece(PIECE if left < 0 else min(left, PIECE))
            except (EOFError, OSError, lzma.LZMAError, ValueError, zlib.error):
                piece = b""
            self._torn = not piece
            pieces.append(piece)
            left -= len(piece) if left > 0 else 0
        return b"".join(pieces)


def scan_source(path: Path | str, rules: RuleSet, *, finder: Finder | None = None) -> Findings:
    """Scan one file, compressed file or standard input."""
    with open_log(path) as stream:
        return scan_log(stream, rules, name=str(path), finder=finder)


def scan_folder(folder: Path, rules: RuleSet, *, finder: Finder | None = None) -> list[Findings]:
    """Scan every log of a folder: the ranks of one launch. Lines without a rank get that of the file's name."""
    matcher_of(rules)
    found = []
    paths = find_files(folder)
    for path, rank in zip(paths, ranks_of_files(paths, folder), strict=True):
        findings = scan_source(path, rules, finder=finder)
        findings.file_rank = rank
        if findings.file_rank is not None:
            for item in findings.findings:
                item.rank = findings.file_rank if item.rank is None else item.rank
        found.append(findings)
    return found
