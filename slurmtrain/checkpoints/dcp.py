"""torch's distributed checkpoints (DCP): ``.metadata`` names a place in a ``.distcp`` file for each piece.

The coordinator writes ``.metadata`` last and renames it into place, so a folder without it was not finished.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.archive import MAGIC, check_members, open_archive
from slurmtrain.checkpoints.model import Corrupt, Entry, Incomplete, Reading
from slurmtrain.checkpoints.unpickle import MAX_BYTES, Inert, read_pickle
from slurmtrain.checkpoints.window import Window

_LOOKED_AT = 16_384  # pieces of a checkpoint, about; of one with fewer, all
_OF_EACH_FILE = 16  # at least


def is_dcp(entry: Entry) -> bool:
    return ".metadata" in entry.names or any(name.endswith(".distcp") for name in entry.names)


def check_dcp(entry: Entry, reading: Reading) -> None:
    """Every piece that the metadata names lies within a file that is there, and has its checksum."""
    check_dcp_folder(entry.path, reading)


def check_dcp_folder(folder: Path, reading: Reading) -> None:
    """As ``check_dcp``, of a folder inside another format's."""
    try:
        with (folder / ".metadata").open("rb") as stream:
            raw = stream.read(MAX_BYTES)
    except FileNotFoundError:
        raise Incomplete(f"{folder.name} has no .metadata, which is written last") from None
    metadata, _ = read_pickle(raw, f".metadata of {folder.name}")
    pieces = metadata.field("storage_data") if isinstance(metadata, Inert) else None
    if not isinstance(pieces, dict):
        raise Corrupt(f".metadata of {folder.name} does not tell where the pieces are")
    files = _places(pieces)
    stride = 1 if reading.deep else max(1, sum(map(len, files.values())) // _LOOKED_AT)
    for name, places in files.items():
        _check_file(folder, name, sorted(places), min(stride, max(1, len(places) // _OF_EACH_FILE)), reading)


def _places(pieces: dict[Any, Any]) -> dict[str, set[tuple[int, int]]]:
    """Relative path → (offset, length) of each piece in it."""
    places: dict[str, set[tuple[int, int]]] = {}
    for piece in pieces.values():
        values = [piece.field(key) for key in ("relative_path", "offset", "length")] if isinstance(piece, Inert) else []
        if len(values) != 3 or not isinstance(values[0], str) or not all(isinstance(n, int) for n in values[1:]):
            continue
        name, offset, length = values
        if name.startswith("/") or ".." in Path(name).parts or offset < 0 or length < 0:
            raise Corrupt(f".metadata names {name[:80]!r} at {offset}, which lies outside of the checkpoint")
        places.setdefault(name, set()).add((offset, length))
    return places


def _check_file(folder: Path, name: str, places: list[tuple[int, int]], stride: int, reading: Reading) -> None:
    try:
        size = (folder / name).stat().st_size
    except FileNotFoundError:
        raise Incomplete(f"{folder.name} has lost {name[:80]!r}") from None
    end = max(offset + length for offset, length in places)
    if size < end:
        raise Incomplete(f"{name[:80]!r} in {folder.name} has {size} bytes of {end}")
    with (folder / name).open("rb") as stream:
        looked = places[::stride]
        saved = {
            at for at in looked if not reading.out_of_time() and stream.seek(at[0]) >= 0 and stream.read(4) == MAGIC
        }
        if len(looked) > len(saved) > len(looked) / 2 and not reading.out_of_time():  # the others were written alike
            raise Corrupt(f"a piece in {name[:80]!r} does not begin as the others do")
        for offset, length in sorted(saved):
            if reading.may_read(length):
                _check_piece(Window(stream, offset, length, name), length, reading)


def _check_piece(piece: Window, length: int, reading: Reading) -> None:
    """A piece is what ``torch.save`` wrote of one tensor or object."""
    try:
        with open_archive(piece, length) as archive:
            check_members(archive, reading)
    except Incomplete as exc:  # the whole piece is there, but its end is no end
        raise Corrupt(f"a piece in {piece.name} is damaged") from exc
