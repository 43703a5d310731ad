"""Files of ``torch.save`` before 1.6: five pickles one after the other, then the tensors' bytes. And plain pickles."""

from __future__ import annotations

import io
import pickletools
from itertools import islice

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.unpickle import MAX_BYTES, find_step, read_pickles, sizes_of

_MAGIC = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_COUNT_BYTES = 8  # in front of each tensor's bytes


def is_torch_legacy(entry: Entry) -> bool:
    return _MAGIC in entry.head[:32]


def check_torch_legacy(entry: Entry, reading: Reading) -> None:
    """All five pickles come to their end, and the tensors' bytes after them."""
    with entry.path.open("rb") as stream:
        data = io.BytesIO(stream.read(MAX_BYTES))
    try:
        pickles = list(islice(read_pickles(data, entry.path.name), 5))
    except Corrupt:
        if data.read(1):
            raise
        raise Incomplete(f"{entry.path.name} ends in the middle: its writer was interrupted, or it was cut") from None
    reading.step = find_step(pickles[3][0])
    wanted = data.tell() + sum(size + _COUNT_BYTES for size in sizes_of(pickles[3][1]).values())
    if entry.size < wanted:
        raise Incomplete(f"{entry.path.name} has {entry.size} bytes of {wanted}")


def is_pickle(entry: Entry) -> bool:
    return entry.head[:1] == b"\x80" and entry.head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def check_pickle(entry: Entry, _reading: Reading) -> None:
    """It comes to its STOP; nothing in it is run."""
    with entry.path.open("rb") as stream:
        data = io.BytesIO(stream.read(MAX_BYTES))
    try:
        for _ in pickletools.genops(data):
            pass
    except (ValueError, UnicodeDecodeError, OverflowError, IndexError) as exc:
        if entry.size > MAX_BYTES:
            return  # what was read is no more than its beginning
        raise Incomplete(f"{entry.path.name} is damaged, or ends in the middle") from exc
