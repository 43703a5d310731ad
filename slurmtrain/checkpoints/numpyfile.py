"""NumPy's ``.npy``: a header with type and shape, then the values."""

from __future__ import annotations

import ast
import math
import re

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

MAGIC = b"\x93NUMPY"
_MAX_HEADER = 1 << 20


def is_npy(entry: Entry) -> bool:
    return entry.head.startswith(MAGIC)


def check_npy(entry: Entry, _reading: Reading) -> None:
    """The file is as long as its header says (of arrays of numbers; objects are pickles and not looked at)."""
    wide = entry.head[6:7] > b"\x01"
    start = 12 if wide else 10
    length = int.from_bytes(entry.head[8:start], "little")
    if len(entry.head) < start or start + length > entry.size:
        raise Incomplete(f"{entry.path.name} ends before its header does")
    if length > _MAX_HEADER:
        raise Corrupt(f"{entry.path.name} says that its header has {length} bytes")
    with entry.path.open("rb") as stream:
        raw = stream.read(start + length)[start:]
    try:
        header = ast.literal_eval(raw.decode("latin-1").strip())
        kind, count = header["descr"], math.prod(int(n) for n in header["shape"])
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as exc:
        raise Corrupt(f"the header of {entry.path.name} is damaged") from exc
    item = re.fullmatch(r"[<>|=][biufcSV](\d{1,6})", kind) if isinstance(kind, str) else None
    wanted = start + length + count * int(item[1]) if item else 0
    if wanted > entry.size:
        raise Incomplete(f"{entry.path.name} has {entry.size} bytes of {wanted}")
