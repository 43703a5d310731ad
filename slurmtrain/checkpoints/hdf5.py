"""HDF5 (Keras' ``.h5``): the superblock says where the file ends and whether a writer still has it open."""

from __future__ import annotations

from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

_SUPERBLOCK = 48  # bytes, at least
MAGIC = b"\x89HDF\r\n\x1a\n"


def is_hdf5(entry: Entry) -> bool:
    return entry.head.startswith(MAGIC)


def check_hdf5(entry: Entry, _reading: Reading) -> None:
    """The file is as long as its superblock (HDF5 specification, II.A) says."""
    if len(entry.head) < _SUPERBLOCK:
        raise Incomplete(f"{entry.path.name} ends before its superblock does")
    version = entry.head[8]
    if version in (0, 1):
        offset_size, at = entry.head[13], 24 + 4 * version
    elif version in (2, 3):
        offset_size, at = entry.head[9], 12
    else:
        raise Corrupt(f"{entry.path.name} has a superblock of version {version}, which does not exist")
    if offset_size not in (2, 4, 8):
        raise Corrupt(f"{entry.path.name} has a damaged superblock")
    end = int.from_bytes(entry.head[at + 2 * offset_size : at + 3 * offset_size], "little")
    if version == 3 and entry.head[11] & 1:
        raise Incomplete(f"{entry.path.name} was never closed by its writer")
    if end > entry.size:
        raise Incomplete(f"{entry.path.name} has {entry.size} bytes of {end}")
