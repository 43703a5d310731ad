"""Files and folders of no known format: empty, cut, or full of the zeros that a crashed host leaves behind."""

from __future__ import annotations

from slurmtrain.checkpoints.jsonfile import load_json
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading

TENSOR_SUFFIXES = frozenset(
    {".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".npz", ".npy", ".h5", ".hdf5", ".keras", ".pkl", ".msgpack"}
)  # files that hold something, or are broken
_BLOCK = 4096
_MAGICS = (b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x93NUMPY\x01\x00", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")


def is_json(entry: Entry) -> bool:
    return entry.path.suffix == ".json" and not entry.is_dir


def check_json(entry: Entry, reading: Reading) -> None:
    """It can be parsed."""
    found = load_json(entry.path, reading)
    step = found.get("step", found.get("global_step")) if isinstance(found, dict) else None
    reading.step = step if isinstance(step, int) and not isinstance(step, bool) else None


def check_plain(entry: Entry, _reading: Reading) -> None:
    """It is not empty, and not all zeros at its end: what a file system keeps of writes that a crash swallowed."""
    if entry.is_dir:
        if not entry.names:
            raise Incomplete(f"{entry.path.name} is an empty folder")
        if all(name.startswith(".") and name != ".metadata" for name in entry.names):  # safetensors begins with .tmpXXX
            raise Incomplete(f"{entry.path.name} holds nothing but hidden files, which its writer had not finished")
        return
    if entry.size == 0:
        raise Incomplete(f"{entry.path.name} is empty")
    if any(magic.startswith(entry.head) for magic in _MAGICS if entry.size < len(magic)):
        raise Incomplete(f"{entry.path.name} ends after {entry.size} bytes")
    if entry.size < _BLOCK or any(entry.head):
        return
    with entry.path.open("rb") as stream:
        stream.seek(entry.size - _BLOCK)
        if not any(stream.read(_BLOCK)):
            raise Corrupt(f"{entry.path.name} holds nothing but zeros at its beginning and its end")
