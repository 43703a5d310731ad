"""torch's distributed checkpoints (DCP): ``.metadata`` names a place in a ``.distcp`` file for each piece.

The coordinator writes ``.metadata`` last and renames it into place, so a folder without it was not finished. With
thousands of ranks it names tens of millions of pieces: they are taken from it while it is read, and where that takes
too long those that were read by then are looked at.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.archive import MAGIC, check_members, open_archive
from slurmtrain.checkpoints.metered import open_metered
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.sample import spread
from slurmtrain.checkpoints.unpickle import Inert, unpickle
from slurmtrain.checkpoints.window import Window

_LOOKED_AT = 16_384  # pieces of a checkpoint, about; of one with fewer, all
_OF_EACH_FILE = 16  # at least
_READ_SHARE, _LOOK_SHARE = 0.6, 0.8  # of the time: when the metadata is read, and the pieces are looked at
_STOP = b"."  # the last byte of a pickle
_LARGEST = 1 << 62


def is_dcp(entry: Entry) -> bool:
    return ".metadata" in entry.names or any(name.endswith(".distcp") for name in entry.names)


def check_dcp(entry: Entry, reading: Reading) -> None:
    """Every piece that the metadata names lies within a file that is there, and has its checksum."""
    folder = entry.path
    files = _read_metadata(folder, reading)
    lost = next((name for name in sorted(files) if "/" not in name and name not in entry.names), None)
    if lost is not None:
        raise Incomplete(f"{folder.name} has lost {lost[:80]!r}")
    stride = 1 if reading.deep else max(1, sum(map(len, files.values())) // 2 // _LOOKED_AT)
    for looked, name in enumerate(spread(sorted(files))):
        places = sorted(set(zip(*[iter(files[name])] * 2, strict=True)))
        if not _check_file(folder, name, places, min(stride, max(1, len(places) // _OF_EACH_FILE)), reading):
            reading.leave_out(f"{looked} of {len(files)} files with pieces")
            return


class _Pieces:
    """Where they are: relative path → offset, length, offset, length, … Nothing else is kept of them."""

    def __init__(self) -> None:
        self.files: dict[str, array[int]] = {}

    def take(self, state: dict[Any, Any]) -> bool:
        """Whether these are the attributes of a piece. Raises ``Corrupt`` for one that lies elsewhere."""
        name, offset, length = state.get("relative_path"), state.get("offset"), state.get("length")
        if type(name) is not str or type(offset) is not int or type(length) is not int:
            return False
        if name not in self.files:
            self._add(name)
        if not 0 <= offset < _LARGEST or not 0 <= length < _LARGEST:
            raise Corrupt(f".metadata names {name[:80]!r} at {offset}, which lies outside of the checkpoint")
        self.files[name].extend((offset, length))
        state.clear()  # the unpickler keeps it to its end
        return True

    def _add(self, name: str) -> None:
        if name.startswith("/") or ".." in Path(name).parts or not _is_name(name):
            raise Corrupt(f".metadata names {name[:80]!r}, which lies outside of the checkpoint")
        self.files[name] = array("q")


def _is_name(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _read_metadata(folder: Path, reading: Reading) -> dict[str, array[int]]:
    pieces = _Pieces()
    try:
        stream, file = open_metered(folder / ".metadata", reading, _READ_SHARE)
    except FileNotFoundError:
        raise Incomplete(f"{folder.name} has no .metadata, which is written last") from None
    with file:
        found = unpickle(stream, f".metadata of {folder.name}", pieces.take)
        if not found.whole:
            read = 100 * stream.taken // max(1, stream.size)
            reading.leave_out(f".metadata of {stream.size >> 20} MiB to {read} %")
            file.seek(-1, 2)
            if file.read(1) != _STOP:
                raise Incomplete(f".metadata of {folder.name} ends in the middle")
    places = found.value.field("storage_data") if isinstance(found.value, Inert) else None
    if found.whole and not isinstance(places, dict):
        raise Corrupt(f".metadata of {folder.name} does not tell where the pieces are")
    return pieces.files


def _check_file(folder: Path, name: str, places: list[tuple[int, int]], stride: int, reading: Reading) -> bool:
    """Whether there was time for it."""
    if reading.out_of_time(_LOOK_SHARE):
        return False
    try:
        size = (folder / name).stat().st_size
    except FileNotFoundError:
        raise Incomplete(f"{folder.name} has lost {name[:80]!r}") from None
    end = max(offset + length for offset, length in places)
    if size < end:
        raise Incomplete(f"{name[:80]!r} in {folder.name} has {size} bytes of {end}")
    with (folder / name).open("rb") as stream:
        saved: list[tuple[int, int]] = []
        for offset, length in places[::stride]:
            if reading.out_of_time(_LOOK_SHARE):
                return False
            stream.seek(offset)
            if stream.read(4) == MAGIC:
                saved.append((offset, length))
        looked = len(places[::stride])
        if looked > len(saved) > looked / 2:  # the others were written alike
            raise Corrupt(f"a piece in {name[:80]!r} does not begin as the others do")
        for offset, length in saved:
            if reading.may_read(length):
                _check_piece(Window(stream, offset, length, name), length, reading)
    return True


def _check_piece(piece: Window, length: int, reading: Reading) -> None:
    """A piece is what ``torch.save`` wrote of one tensor or object."""
    try:
        with open_archive(piece, length) as archive:
            check_members(archive, reading)
    except Incomplete as exc:  # the whole piece is there, but its end is no end
        raise Corrupt(f"a piece in {piece.name} is damaged") from exc
