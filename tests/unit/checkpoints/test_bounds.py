"""What a check costs at most. What it has no time or memory for says nothing against a checkpoint, and is told."""

from __future__ import annotations

import json
import os
import pickle
import re
import struct
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from samples import SAMPLES, copy
from test_large import write_dcp, write_safetensors

from slurmtrain.checkpoints import check as checks
from slurmtrain.checkpoints import jsonfile
from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.check import check
from slurmtrain.checkpoints.model import RESUMABLE, Health
from slurmtrain.checkpoints.sample import spread

LIMIT_S = 120.0  # of a machine that does much else
HOLE = b"this is where the hole is"
LARGE = 270 << 20


class Slow:
    """Lets every opening and listing below a folder take a while, as storage that is far away does."""

    def __init__(self) -> None:
        self.below, self.delay_s = "", 0.0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.delay_s and event in {"open", "os.scandir", "os.listdir"} and str(args[0]).startswith(self.below):
            time.sleep(self.delay_s)


SLOW = Slow()
sys.addaudithook(SLOW)


@contextmanager
def slow(below: Path, delay_s: float) -> Iterator[None]:
    SLOW.below, SLOW.delay_s = str(below), delay_s
    try:
        yield
    finally:
        SLOW.delay_s = 0.0


def with_hole(value: object, size: int = LARGE) -> tuple[bytes, bytes]:
    """Its pickle, with the bytes ``HOLE`` in it standing for so many zeros: what lies before them, and behind."""
    before, after = pickle.dumps(value, protocol=3).split(b"C" + bytes([len(HOLE)]) + HOLE)
    return before + b"B" + struct.pack("<I", size), after


def write_parts(path: Path, *parts: bytes | int) -> None:
    """Bytes, and holes of so many bytes."""
    with path.open("wb") as stream:
        for part in parts:
            stream.write(part) if isinstance(part, bytes) else stream.seek(part, os.SEEK_CUR)


@pytest.mark.one_python
def test_metadata_of_hundreds_of_megabytes_is_not_called_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "step-7"
    write_dcp(folder, 4, 100, 64, protocol=3, planner_data=HOLE)
    before, after = (folder / ".metadata").read_bytes().split(b"C" + bytes([len(HOLE)]) + HOLE)
    write_parts(folder / ".metadata", before + b"B" + struct.pack("<I", LARGE), LARGE, after)
    verdict = check_apart(folder, limit_s=LIMIT_S)
    assert (verdict.health, verdict.format) == (Health.VALID, "dcp"), verdict
    (folder / "__3_0.distcp").unlink()
    assert check_apart(folder, limit_s=LIMIT_S).health is Health.INCOMPLETE


@pytest.mark.one_python
def test_an_old_file_of_torch_with_a_large_object(tmp_path: Path) -> None:
    path = tmp_path / "step-7.pt"
    before, after = with_hole({"data": HOLE, "step": 7})
    front = b"".join(pickle.dumps(one, protocol=2) for one in (0x1950A86A20F9469CFC6C, 1001, {}))
    write_parts(path, front + before, LARGE, after + pickle.dumps([], protocol=2))
    verdict = check_apart(path, limit_s=LIMIT_S)
    assert (verdict.health, verdict.format, verdict.step) == (Health.VALID, "torch-legacy", 7), verdict
    os.truncate(path, path.stat().st_size - 1)
    assert check_apart(path, limit_s=LIMIT_S).health is Health.INCOMPLETE


def test_a_pickle_with_an_array_larger_than_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "step-7.pkl"
    write_parts(path, b"\x80\x04]\x8e" + struct.pack("<Q", 8 << 30), 8 << 30, b"a.")
    assert check_apart(path, limit_s=LIMIT_S).health is Health.VALID
    os.truncate(path, path.stat().st_size - 1)
    assert check_apart(path, limit_s=LIMIT_S).health is Health.INCOMPLETE


def test_a_pickle_of_joblib_holds_bytes_that_are_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "step-7.pkl"
    path.write_bytes(b"\x80\x04\x8c\x13joblib.numpy_pickle\x8c\x11NumpyArrayWrapper\x93)\x81" + b"\xff" * 5000)
    verdict = check(path)
    assert (verdict.health, "where joblib's arrays begin" in verdict.detail) == (Health.VALID, True), verdict


def test_metadata_for_which_the_time_is_too_short_is_looked_at_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step-7"
    write_dcp(folder, 8, 40_000, 64)
    monkeypatch.setattr(checks, "CHEAP_S", 0.3)
    verdict = check(folder)
    assert verdict.health is Health.VALID
    assert re.search(r"looked at in part: \.metadata of \d+ MiB to [1-9]\d? %", verdict.detail), verdict
    assert check(folder, deep=True).detail == ""
    os.truncate(folder / ".metadata", (folder / ".metadata").stat().st_size - 2)
    assert check(folder).health is Health.INCOMPLETE


def test_a_pickle_for_which_the_memory_is_too_small_is_looked_at_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slurmtrain.checkpoints import metered

    folder = tmp_path / "step-7"
    write_dcp(folder, 8, 5000, 64)
    monkeypatch.setattr(metered, "MEMORY_BYTES", 1)
    verdict = check(folder)
    assert (verdict.health, ".metadata of" in verdict.detail) == (Health.VALID, True), verdict


def many_files(folder: Path) -> str:
    for number in range(1500):
        write_safetensors(folder / f"rank-{number:04d}.safetensors", 1, 64)
    return "rank-1499.safetensors"


def many_shards(folder: Path) -> str:
    names = [f"model-{n + 1:05d}-of-00800.safetensors" for n in range(800)]
    for name in names:
        write_safetensors(folder / name, 1, 64)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict(enumerate(names))}))
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    return names[-1]


def many_pieces(folder: Path) -> str:
    folder.rmdir()
    write_dcp(folder, 1500, 2, 64)
    return "__1499_0.distcp"


def many_arrays(folder: Path) -> str:
    (folder / "_CHECKPOINT_METADATA").write_text("{}")
    for number in range(1500):
        (folder / f"params.{number}").mkdir()
        (folder / f"params.{number}" / "_METADATA").write_text("{}")
    return "params.1499/_METADATA"


@pytest.mark.parametrize("make", [many_files, many_shards, many_pieces, many_arrays])
def test_slow_storage(make: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it would take eight seconds and more; a look at a sample takes two."""
    assert callable(make)
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    last = folder / make(folder)
    monkeypatch.setattr(checks, "CHEAP_S", 1.0)
    with slow(tmp_path, 0.005):
        began = time.monotonic()
        verdict = check(folder)
        took = time.monotonic() - began
    assert verdict.health is Health.VALID, verdict
    assert re.search(r"looked at in part: (no more than )?[1-9]\d* of (\d+|its) (files|folders)", verdict.detail), (
        verdict
    )
    assert took < 5
    last.write_bytes(b"{" if last.suffix != ".distcp" else b"")
    assert check(folder, deep=True).health in {Health.CORRUPT, Health.INCOMPLETE}, "a deep check looks at all of it"


def test_a_sample_is_even(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank in twenty, the last ones, was cut off by a full disk."""
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    many_files(folder)
    for number in range(1425, 1500):
        os.truncate(folder / f"rank-{number:04d}.safetensors", 50)
    monkeypatch.setattr(checks, "CHEAP_S", 1.0)
    with slow(tmp_path, 0.003):
        assert check(folder).health is Health.INCOMPLETE


@pytest.mark.parametrize("sample", SAMPLES)
def test_what_there_is_no_time_for_is_no_word_against_it(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "CHEAP_S", 0.0)
    assert check(copy(sample, tmp_path)).health in RESUMABLE


def test_a_bomb_is_held_to_the_size_that_it_says(tmp_path: Path) -> None:
    path = tmp_path / "step-7.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("step-7/data.pkl", bytes(251 << 20))
    packed, true = path.read_bytes(), struct.pack("<I", 251 << 20)
    assert packed.count(true) == 2, "in front of it, and in the directory"
    path.write_bytes(packed.replace(true, struct.pack("<I", 1003)))
    verdict = check(path)
    assert (verdict.health, "unpacks to more than it says" in verdict.detail) == (Health.CORRUPT, True), verdict


@pytest.mark.parametrize("name", ["trainer_state.json", "model.safetensors.index.json"])
def test_json_that_is_too_large_to_be_parsed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    many_shards(folder)
    state = {"global_step": 7, "log_history": [{"loss": 0.5}] * 2000}
    (folder / "trainer_state.json").write_text(json.dumps(state, indent=2))
    monkeypatch.setattr(jsonfile, "MAX_JSON", 10_000)
    verdict = check(folder)
    assert (verdict.health, verdict.step) == (Health.VALID, 7), verdict
    assert f"{name} of 0 MiB not at all" in verdict.detail
    os.truncate(folder / name, 20_000)
    assert check(folder).health is Health.CORRUPT


def test_a_piece_under_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    folder = tmp_path / "step-7"
    write_dcp(folder, 1, 1, 64)
    raw = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(raw.replace(b"__0_0.distcp", b"__0\xed\xa0\x80.distc"))
    assert check(folder).health is Health.CORRUPT


def test_a_sample_holds_each_of_them_once() -> None:
    for count in (0, 1, 2, 100, 101, 144, 1000, 4096):
        assert sorted(spread(range(count))) == list(range(count))
    first = sorted(list(spread(range(10_000)))[:100])
    assert max(b - a for a, b in pairwise(first)) < 300, "without a wide gap"
