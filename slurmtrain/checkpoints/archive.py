"""Zip archives as torch, NumPy and Keras write them: the directory at the end, sizes, checksums."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.metered import BUFFER_BYTES, Metered
from slurmtrain.checkpoints.model import CHECKSUM_SHARE, Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.unpickle import find_step, sizes_of, unpickle
from slurmtrain.checkpoints.window import Window

MAGIC = b"PK\x03\x04"
_HEADER = struct.Struct("<4s5H3I2H")  # a member's local header, without its name
_UTF8 = 1 << 11  # the flag that says how names are encoded
_MAX_NAME = 512  # bytes of a name that are compared
_END = struct.Struct("<4s6xH10x")  # the end of the directory: how many members there are
_COUNT_IS_ELSEWHERE = 0xFFFF
_CHUNK = 4 << 20
_SAMPLED = 64  # local headers that are compared with the directory
_MAX_MEMBERS = 1_000_000


def is_archive(entry: Entry) -> bool:
    return entry.head.startswith(MAGIC)


def open_archive(file: Path | Window, size: int) -> zipfile.ZipFile:
    """Read the directory. Raises ``Incomplete`` where it is missing: it is written last."""
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as exc:
        raise Incomplete(f"{Path(file.name).name} has no end: its writer was interrupted, or it was cut") from exc
    end = _END.unpack(_read_at(archive, size - _END.size, _END.size)) if size >= _END.size else (b"", 0)
    if end[0] == b"PK\x05\x06" and end[1] not in (len(archive.infolist()), _COUNT_IS_ELSEWHERE):
        raise Corrupt(f"{_name(archive)} has lost members: {len(archive.infolist())} are left of {end[1]}")
    if len(archive.infolist()) > _MAX_MEMBERS:
        raise Corrupt(f"{_name(archive)} says that it has {len(archive.infolist())} members")
    for member in archive.infolist():
        if not 0 <= member.header_offset <= size - member.compress_size:
            raise Corrupt(f"{_name(archive)}: {member.filename[:80]!r} would lie behind the end of the file")
    return archive


def check_members(archive: zipfile.ZipFile, reading: Reading) -> None:
    """Headers of a sample, checksums of as much as may be read. Raises ``Corrupt``."""
    members = archive.infolist()
    for member in members[:: max(1, len(members) // _SAMPLED)]:
        _find_data(archive, member)
    bad = [m.filename for m in members if reading.may_read(m.compress_size) and not _is_sound(archive, m, reading)]
    if bad and len(bad) < len(members):  # all of them: written without checksums, which torch can do
        raise Corrupt(f"{_name(archive)}: {bad[0][:80]!r} does not have the checksum that was written with it")


def _is_sound(archive: zipfile.ZipFile, member: zipfile.ZipInfo, reading: Reading) -> bool:
    crc = seen = 0
    for chunk in read_member(archive, member):
        crc, seen = zlib.crc32(chunk, crc), seen + len(chunk)
        if reading.out_of_time(CHECKSUM_SHARE):
            reading.complete = False
            return True
    return crc == member.CRC and seen == member.file_size


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """A member's content, whatever its checksum says, and never more than the directory says. Raises ``Corrupt``."""
    unpacked = 0
    for chunk in _unpack(archive, member):
        unpacked += len(chunk)
        if unpacked > member.file_size:
            raise Corrupt(f"{_name(archive)}: {member.filename[:80]!r} unpacks to more than it says")
        yield chunk


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    at, left = _find_data(archive, member), member.compress_size
    inflate = zlib.decompressobj(-zlib.MAX_WBITS) if member.compress_type == zipfile.ZIP_DEFLATED else None
    if inflate is None and member.compress_type != zipfile.ZIP_STORED:
        raise Corrupt(f"{_name(archive)}: {member.filename[:80]!r} is compressed in a way that is not known here")
    while left > 0:
        chunk = _read_at(archive, at, min(left, _CHUNK))
        if not chunk:
            raise Corrupt(f"{_name(archive)}: {member.filename[:80]!r} is cut off")
        at, left = at + len(chunk), left - len(chunk)
        try:
            while chunk and inflate is not None:
                yield inflate.decompress(chunk, _CHUNK)
                chunk = inflate.unconsumed_tail
        except zlib.error as exc:
            raise Corrupt(f"{_name(archive)}: {member.filename[:80]!r} cannot be unpacked") from exc
        if inflate is None:
            yield chunk


class _Member(io.RawIOBase):
    """A member's content as a file."""

    def __init__(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
        super().__init__()
        self._chunks = read_member(archive, member)
        self._chunk = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer)
        while not self._chunk:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._chunk = memoryview(chunk)
        part = self._chunk[: len(target)]
        target[: len(part)] = part
        self._chunk = self._chunk[len(part) :]
        return len(part)


def _find_data(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Where a member's content begins. Raises ``Corrupt`` where its header is not where the directory says."""
    header = _read_at(archive, member.header_offset, _HEADER.size + _MAX_NAME)
    fixed, name = header[: _HEADER.size], header[_HEADER.size :]
    known = member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")
    if len(fixed) < _HEADER.size or not fixed.startswith(MAGIC) or not name.startswith(known[:_MAX_NAME]):
        raise Corrupt(f"{_name(archive)}: where {member.filename[:80]!r} should begin, something else lies")
    name_length, extra_length = _HEADER.unpack(fixed)[-2:]
    return int(member.header_offset + _HEADER.size + name_length + extra_length)


def _read_at(archive: zipfile.ZipFile, at: int, size: int) -> bytes:
    assert archive.fp is not None  # noqa: S101 - it is open
    archive.fp.seek(at)
    return archive.fp.read(size)


def _name(archive: zipfile.ZipFile) -> str:
    return Path(str(archive.filename)).name


# --- torch.save since 1.6


def is_torch_archive(entry: Entry) -> bool:
    """One folder in the archive holds ``data.pkl``; torch pads so that it comes first."""
    return is_archive(entry) and b"/data.pkl" in entry.head


def check_torch_archive(entry: Entry, reading: Reading) -> None:
    """``data.pkl`` can be read, every tensor's storage is there in its full size."""
    with open_archive(entry.path, entry.size) as archive:
        check_members(archive, reading)  # first: what fails here is not looked into
        reading.step = find_step(read_torch_object(archive, entry.path.name, reading))


def read_torch_object(archive: zipfile.ZipFile, name: str, reading: Reading) -> Any:
    """What ``torch.save`` was given, with inert objects for everything but plain values. Raises ``Corrupt``.

    None where it is too large to be read; the storages that it names until then are looked for.
    """
    root = next((n[: -len("/data.pkl")] for n in archive.namelist() if n.endswith("/data.pkl")), None)
    if root is None:
        raise Corrupt(f"{name} has no data.pkl")
    member = archive.getinfo(f"{root}/data.pkl")
    with io.BufferedReader(_Member(archive, member), BUFFER_BYTES) as stream:
        metered = Metered(stream, member.file_size, reading)
        found = unpickle(metered, f"data.pkl of {name}")
    if not found.whole:
        reading.leave_out(f"data.pkl to {100 * metered.taken // max(1, metered.size)} %")
    _check_storages(archive, root, found.storages, name)
    return found.value


def _check_storages(archive: zipfile.ZipFile, root: str, storages: list[tuple[Any, ...]], name: str) -> None:
    sizes = {member.filename: member.file_size for member in archive.infolist()}
    for key, size in sizes_of(storages).items():
        there = sizes.get(f"{root}/data/{key}")
        if there is None:
            raise Corrupt(f"{name} has lost the storage {key[:40]!r} of a tensor")
        if there < size:
            raise Corrupt(f"{name}: the storage {key[:40]!r} of a tensor is too short")


# --- other archives


def check_archive(entry: Entry, reading: Reading) -> None:
    """``.npz``, ``.keras`` and whatever else is a zip file."""
    with open_archive(entry.path, entry.size) as archive:
        check_members(archive, reading)
