"""Checkpoints of hundreds of gigabytes: files with real headers and nothing but holes behind them."""

from __future__ import annotations

import io
import json
import os
import pickle
import resource
import struct
import sys
import types
import zipfile
from pathlib import Path

import pytest

from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.model import Health

GIB = 1 << 30
LIMIT_S = 120.0  # of a machine that does much else; at rest it takes one or two


def write_safetensors(path: Path, tensors: int, each: int) -> None:
    header = {
        f"layers.{n}.weight": {"dtype": "BF16", "shape": [each // 2], "data_offsets": [n * each, (n + 1) * each]}
        for n in range(tensors)
    }
    raw = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(raw)) + raw)
        stream.truncate(8 + len(raw) + tensors * each)


def write_zip64(path: Path, tensors: int, each: int) -> None:
    """An archive as ``torch.save`` writes it, members above 4 GiB included, of which only the headers are real."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        archive.writestr("step-7/data.pkl", pickle.dumps({"global_step": 7}, protocol=2))
        for number in range(tensors):
            member = zipfile.ZipInfo(f"step-7/data/{number}")
            member.file_size = member.compress_size = each
            member.CRC = 0  # of a hole that nobody reads
            member.header_offset = archive.fp.tell()
            archive.fp.write(member.FileHeader(zip64=True))
            archive.fp.seek(each, os.SEEK_CUR)
            archive.filelist.append(member)
            archive.NameToInfo[member.filename] = member
        archive.start_dir = archive.fp.tell()


class Piece:
    """Stands for torch's classes of a checkpoint's metadata; pickled under their names."""

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)


def write_dcp(folder: Path, files: int, pieces: int, each: int, protocol: int = 4, **more: object) -> None:
    """``.metadata`` and shards as torch's writer makes them; the classes are named as there, torch is not needed."""
    module = "torch.distributed.checkpoint"
    names = {"Metadata": f"{module}.metadata", "MetadataIndex": f"{module}.metadata"}
    names["_StorageInfo"] = f"{module}.filesystem"
    kinds = {name: type(name, (Piece,), {"__module__": where}) for name, where in names.items()}
    stand_ins = {where: types.ModuleType(where) for where in {*names.values(), "torch", "torch.distributed", module}}
    for name, where in names.items():
        setattr(stand_ins[where], name, kinds[name])
    places = {
        kinds["MetadataIndex"](fqn=f"layers.{piece}.weight", offset=(file,), index=file): kinds["_StorageInfo"](
            relative_path=f"__{file}_0.distcp", offset=piece * each, length=each
        )
        for file in range(files)
        for piece in range(pieces)
    }
    before = {where: sys.modules.get(where) for where in stand_ins}
    sys.modules.update(stand_ins)
    try:
        raw = pickle.dumps(kinds["Metadata"](state_dict_metadata={}, **more, storage_data=places), protocol=protocol)
    finally:
        for where, old in before.items():
            sys.modules.pop(where) if old is None else sys.modules.update({where: old})
    folder.mkdir()
    (folder / ".metadata").write_bytes(raw)
    for file in range(files):
        with (folder / f"__{file}_0.distcp").open("wb") as stream:
            stream.truncate(pieces * each)


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


@pytest.mark.one_python
def test_two_hundred_gigabytes_of_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "step-7.safetensors"
    write_safetensors(path, 1000, 200 * GIB // 1000)
    assert path.stat().st_size > 199 * GIB
    assert check_apart(path, limit_s=LIMIT_S).health is Health.VALID
    os.truncate(path, path.stat().st_size - 1)
    assert check_apart(path, limit_s=LIMIT_S).health is Health.INCOMPLETE
    assert peak_mib() < 500


@pytest.mark.one_python
def test_two_hundred_gigabytes_of_torch(tmp_path: Path) -> None:
    path = tmp_path / "step-7.pt"
    write_zip64(path, 40, 5 * GIB)
    assert path.stat().st_size > 199 * GIB
    verdict = check_apart(path, limit_s=LIMIT_S)
    assert (verdict.health, verdict.format, verdict.step) == (Health.VALID, "torch", 7), verdict
    os.truncate(path, 150 * GIB)
    assert check_apart(path, limit_s=LIMIT_S).health is Health.INCOMPLETE
    assert peak_mib() < 500


@pytest.mark.one_python
def test_five_hundred_shards_of_torch(tmp_path: Path) -> None:
    """Half a terabyte in 512 files of 200 tensors each."""
    folder = tmp_path / "step-7"
    write_dcp(folder, 512, 200, 5 << 20)
    verdict = check_apart(folder, limit_s=LIMIT_S)
    assert (verdict.health, verdict.format) == (Health.VALID, "dcp"), verdict
    os.truncate(folder / "__300_0.distcp", (200 * 5 << 20) - 1)
    assert check_apart(folder, limit_s=LIMIT_S).detail.startswith("'__300_0.distcp' in step-7 has")
    (folder / "__300_0.distcp").unlink()
    assert check_apart(folder, limit_s=LIMIT_S).detail == "step-7 has lost '__300_0.distcp'"
    assert peak_mib() < 1000


@pytest.mark.one_python
def test_the_metadata_of_five_thousand_ranks_is_no_checkpoint_that_asks_for_too_much(tmp_path: Path) -> None:
    """What is read of a piece is small enough that half a million of them fit into the check's bound on memory."""
    folder = tmp_path / "step-7"
    write_dcp(folder, 8, 64_000, 64)
    assert check_apart(folder, limit_s=LIMIT_S).health is Health.VALID


@pytest.mark.parametrize("damaged", [1, 36, 39])
def test_every_piece_of_a_small_one_is_looked_at(damaged: int, tmp_path: Path) -> None:
    """A sample is for those with tens of thousands of pieces: 40 are read in no time."""
    piece = io.BytesIO()
    with zipfile.ZipFile(piece, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("archive/data/0", bytes(range(256)) * 16)
    each = len(piece.getvalue())
    folder = tmp_path / "step-7"
    write_dcp(folder, 1, 40, each)
    (folder / "__0_0.distcp").write_bytes(piece.getvalue() * 40)
    assert check_apart(folder, limit_s=LIMIT_S).health is Health.VALID
    with (folder / "__0_0.distcp").open("r+b") as stream:
        stream.seek(damaged * each + each // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 4]))
    verdict = check_apart(folder, limit_s=LIMIT_S)
    assert verdict.health is Health.CORRUPT, verdict
