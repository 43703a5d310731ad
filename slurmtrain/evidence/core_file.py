"""What a core file of Linux tells without a debugger: program, arguments, signal, process, environment.

Little-endian ELF of 64 bits, as x86-64 and arm64 write it (core(5), elf(5); fs/binfmt_elf.c for the notes).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_CORE, _LOAD, _NOTES = 4, 1, 4
_PRSTATUS, _PRPSINFO, _AUXV, _FILE = 1, 3, 6, 0x46494C45
_AT_EXECFN = 31
_MAX_NOTES, _MAX_PROGRAMS = 16 << 20, 65_535
_STACK_TOP = 1 << 20  # of the stack, where the kernel puts arguments and environment


@dataclass(frozen=True, slots=True)
class CoreFile:
    """``program`` is the path of what was executed; ``environ`` is empty where the file was cut off before it."""

    signal: int
    pid: int
    program: str
    arguments: str
    environ: dict[str, str]


def read_core_file(path: Path) -> CoreFile | None:
    """None for what is no core file. Raises ``OSError``."""
    with path.open("rb") as stream:
        try:
            return _read(stream)
        except (struct.error, ValueError, IndexError):
            return None


def _read(stream: BinaryIO) -> CoreFile | None:
    ident, kind, *_, offset, _, _, _, size, count, _, _, _ = _HEADER.unpack(stream.read(_HEADER.size))
    if ident[:6] != b"\x7fELF\x02\x01" or kind != _CORE or size != _PROGRAM.size:
        return None
    stream.seek(offset)
    table = stream.read(min(count, _MAX_PROGRAMS) * size)
    programs = list(_PROGRAM.iter_unpack(table[: len(table) // size * size]))
    signal = pid = 0
    arguments = program = ""
    top = 0
    for note, data in _notes(stream, programs):
        if note == _PRSTATUS and not pid:  # of the thread that crashed, which comes first
            signal, pid = struct.unpack_from("<h", data, 12)[0], struct.unpack_from("<i", data, 32)[0]
        elif note == _PRPSINFO:
            pid = struct.unpack_from("<i", data, 24)[0] or pid
            arguments = data[56:136].split(b"\0")[0].decode("utf-8", "replace").strip()
        elif note == _AUXV:
            pairs = dict(struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]))
            top = pairs.get(_AT_EXECFN, 0)
        elif note == _FILE and not program:
            program = _first_file(data)
    return CoreFile(signal, pid, program, arguments, _environment(stream, programs, top) if top else {})


def _notes(stream: BinaryIO, programs: list[tuple[int, ...]]) -> Iterator[tuple[int, bytes]]:
    for kind, _, offset, _, _, size, _, _ in programs:
        if kind != _NOTES:
            continue
        stream.seek(offset)
        data = stream.read(min(size, _MAX_NOTES))
        at = 0
        while at + _NOTE.size <= len(data):
            name, length, note = _NOTE.unpack_from(data, at)
            begin = at + _NOTE.size + (name + 3) // 4 * 4
            yield note, data[begin : begin + length]
            at = begin + (length + 3) // 4 * 4


def _first_file(data: bytes) -> str:
    """The first mapped file, which is the program itself."""
    count, _ = struct.unpack_from("<QQ", data)
    return data[16 + 24 * count :].split(b"\0")[0].decode("utf-8", "surrogateescape")


def _environment(stream: BinaryIO, programs: list[tuple[int, ...]], top: int) -> dict[str, str]:
    """The strings below the program's name at the top of the stack: arguments first, then the environment."""
    for kind, _, offset, address, _, size, _, _ in programs:
        if kind == _LOAD and address <= top < address + size:
            begin = max(address, top - _STACK_TOP)
            stream.seek(offset + begin - address)
            strings = stream.read(top - begin).split(b"\0")
            pairs = (text.partition(b"=") for text in strings if b"=" in text)
            return {
                name.decode(): value.decode("utf-8", "surrogateescape")
                for name, _, value in pairs
                if name.isascii() and name.replace(b"_", b"a").isalnum()
            }
    return {}
