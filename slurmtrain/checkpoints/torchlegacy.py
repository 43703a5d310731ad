"""Files of ``torch.save`` before 1.6: five pickles one after the other, then the tensors' bytes. And plain pickles."""

from __future__ import annotations

import io
import pickletools
from typing import IO, BinaryIO, cast

from slurmtrain.checkpoints.metered import BUFFER_BYTES, Enough, Metered, open_metered
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.unpickle import Unpickled, find_step, sizes_of, unpickle

_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_COUNT_BYTES = 8  # in front of each tensor's bytes
_PICKLES, _OBJECT = 5, 3  # magic number, version, machine, the object, the tensors' names
_LONG_ARGUMENT = 1 << 20  # bytes of a string in a pickle that are not read but skipped
_OPCODES_BETWEEN_LOOKS = 10_000
_RAW_BYTES = "NumpyArrayWrapper"  # joblib's, which writes bytes that are no pickle in between


def is_torch_legacy(entry: Entry) -> bool:
    return _MAGIC in entry.head[:32]


def check_torch_legacy(entry: Entry, reading: Reading) -> None:
    """All five pickles come to their end, and the tensors' bytes after them."""
    name = entry.path.name
    metered, stream = open_metered(entry.path, reading)
    with stream:
        try:
            found = _read_pickles(metered, name)
        except Corrupt:
            if stream.read(1):
                raise
            raise Incomplete(f"{name} ends in the middle: its writer was interrupted, or it was cut") from None
        if not found[-1].whole:
            reading.leave_out(f"its pickles to {100 * stream.tell() // max(1, entry.size)} %")
        wanted = stream.tell()
    if len(found) > _OBJECT:
        reading.step = find_step(found[_OBJECT].value)
        wanted += sum(size + _COUNT_BYTES for size in sizes_of(found[_OBJECT].storages).values())
    if entry.size < wanted:
        raise Incomplete(f"{name} has {entry.size} bytes of {wanted}")


def _read_pickles(stream: Metered, name: str) -> list[Unpickled]:
    """As many as could be read whole, and the one that could not."""
    found: list[Unpickled] = []
    while len(found) < _PICKLES and (not found or found[-1].whole):
        found.append(unpickle(stream, name))
    return found


def is_pickle(entry: Entry) -> bool:
    return entry.head[:1] == b"\x80" and entry.head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def check_pickle(entry: Entry, reading: Reading) -> None:
    """It comes to its STOP; nothing in it is run, and none of it is kept."""
    with entry.path.open("rb", buffering=BUFFER_BYTES) as stream:
        try:
            _go_through(_Skipping(stream, entry.size), reading)
        except Enough as exc:
            reading.leave_out(f"to {100 * stream.tell() // max(1, entry.size)} %{exc}")
        except (ValueError, UnicodeDecodeError, OverflowError, IndexError) as exc:
            raise Incomplete(f"{entry.path.name} is damaged, or ends in the middle") from exc


def _go_through(stream: _Skipping, reading: Reading) -> None:
    for number, (_, argument, _) in enumerate(pickletools.genops(cast("IO[bytes]", stream))):
        if isinstance(argument, str) and _RAW_BYTES in argument[-100:]:
            raise Enough(", where joblib's arrays begin")
        if number % _OPCODES_BETWEEN_LOOKS == 0 and reading.out_of_time():
            raise Enough


class _Skipped(bytes):
    """So many bytes that were not read."""

    def __new__(cls, length: int) -> _Skipped:
        made = super().__new__(cls)
        made.length = length
        return made

    length: int

    def __len__(self) -> int:
        return self.length


class _Skipping(io.RawIOBase):
    """For pickletools: long strings, as the bytes of arrays are, are skipped."""

    def __init__(self, stream: BinaryIO, size: int) -> None:
        super().__init__()
        self._stream, self._size = stream, size

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size <= _LONG_ARGUMENT:
            return self._stream.read(-1 if size is None else size)
        if size > self._size - self._stream.tell():
            return b""
        self._stream.seek(size, 1)
        return _Skipped(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._stream.readline(_LONG_ARGUMENT)

    def tell(self) -> int:
        return self._stream.tell()
