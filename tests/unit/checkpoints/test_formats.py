"""Checkpoints as the programs themselves write them (tests/data/checkpoints), whole and damaged in every way."""

from __future__ import annotations

import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
from samples import DATA, SAMPLES, copy, files_of

from slurmtrain.checkpoints.archive import read_member
from slurmtrain.checkpoints.check import check
from slurmtrain.checkpoints.model import BROKEN, Corrupt, Health

# Without these a program resumes all the same, or writes them anew.
MAY_BE_LOST = {
    "config.json", "generation_config.json", "training_args.bin", "scheduler.pt", "rng_state.pth", "optimizer.pt",
    "_sharding", "process_0", "commit_success.txt", "_CHECKPOINT_METADATA", "_METADATA", "manifest.ocdbt",
    "model.safetensors.index.json",
}  # fmt: skip


def test_every_sample_is_in_the_table() -> None:
    there = {f"{p.parent.name}/{p.name}" for folder in DATA.iterdir() if folder.is_dir() for p in folder.iterdir()}
    rest = {name for name in there - set(SAMPLES) if not name.startswith("deepspeed/")}
    assert rest == {"lightning/epoch=0-step=2.ckpt", "trainer/checkpoint-2"}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("sample", "wanted"), SAMPLES.items(), ids=SAMPLES)
def test_whole(sample: str, wanted: tuple[str, int | None], deep: bool) -> None:
    verdict = check(DATA / sample, deep=deep)
    assert (verdict.health, verdict.format, verdict.step) == (Health.VALID, *wanted), verdict


@pytest.mark.parametrize("sample", SAMPLES)
def test_cut_off_anywhere(sample: str, tmp_path: Path) -> None:
    """What a kill in the middle of a save leaves: no length of any file passes for whole."""
    whole = copy(sample, tmp_path)
    for path in files_of(whole):
        if (path.name in MAY_BE_LOST and path.suffix == "") or "/d/" in str(path):
            continue
        size, content = path.stat().st_size, path.read_bytes()
        for length in sorted({0, 1, 7, 100, size // 3, size // 2, size - 100, size - 7, size - 1} & set(range(size))):
            os.truncate(path, length)
            verdict = check(whole)
            noticed = path.name not in {"config.json", "generation_config.json", "commit_success.txt"}
            if noticed and not (path.suffix == ".json" and length == size - 1):  # a newline
                assert verdict.health in BROKEN, (path.name, length, size, verdict)
            path.write_bytes(content)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if (DATA / s).is_dir()])
def test_a_lost_file(sample: str, tmp_path: Path) -> None:
    whole = copy(sample, tmp_path)
    for path in files_of(whole):
        if path.name in MAY_BE_LOST or "d" in path.parts[-2:-1]:
            continue
        path.rename(tmp_path / "lost")
        verdict = check(whole)
        assert verdict.health in BROKEN, (path.name, verdict)
        (tmp_path / "lost").rename(path)


@pytest.mark.parametrize(
    "sample", ["torch/step-000040.pt", "lightning/last.ckpt", "numpy/step-40.npz", "numpy/packed-40.npz"]
)
def test_a_flipped_bit_changes_no_content_unseen(sample: str, tmp_path: Path) -> None:
    path = copy(sample, tmp_path)
    content, members = path.read_bytes(), read_members(path)
    source = random.Random(7)
    for _ in range(150):
        at = source.randrange(len(content))
        damaged = bytearray(content)
        damaged[at] ^= 1 << source.randrange(8)
        path.write_bytes(damaged)
        verdict = check(path)
        assert verdict.health in BROKEN or read_members(path) == members, (at, verdict)


@pytest.mark.parametrize("left", [(".tmp2fuSNZ",), ("model.safetensors",), ("model.safetensors", "training_args.bin")])
def test_a_trainers_save_that_was_cut_off_early_is_known_by_its_neighbours(
    left: tuple[str, ...], tmp_path: Path
) -> None:
    """Without a config.json (a model of no library) and without its state, which is written last."""
    copy("trainer/checkpoint-4", tmp_path)
    cut = tmp_path / "checkpoint-6"
    cut.mkdir()
    for name in left:
        shutil.copy2(DATA / "trainer" / "checkpoint-4" / name, cut) if name[0] != "." else (cut / name).touch()
    verdict = check(cut)
    assert verdict.health is Health.INCOMPLETE, verdict
    assert check(tmp_path / "checkpoint-4").health is Health.VALID


def test_a_trainers_checkpoint_that_lost_its_optimizer_is_not_whole(tmp_path: Path) -> None:
    for step in (4, 6, 8):
        shutil.copytree(DATA / "trainer" / "checkpoint-4", tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-6" / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-4" / "optimizer.pt").unlink()
    assert check(tmp_path / "checkpoint-6").health is Health.VALID, "old ones a person may have made smaller"
    (tmp_path / "checkpoint-8" / "optimizer.pt").rename(tmp_path / "checkpoint-4" / "optimizer.pt")
    verdict = check(tmp_path / "checkpoint-8")
    assert (verdict.health, verdict.detail) == (
        Health.INCOMPLETE,
        "checkpoint-8 has lost 'optimizer.pt', which the checkpoints before it have",
    )


def read_members(path: Path) -> dict[str, bytes] | None:
    try:
        with zipfile.ZipFile(path) as archive:
            return {info.filename: b"".join(read_member(archive, info)) for info in archive.infolist()}
    except (Corrupt, zipfile.BadZipFile):
        return None


@pytest.mark.parametrize("sample", ["dcp/step-40", "trainer/checkpoint-4", "deepspeed/global_step1"])
def test_a_flipped_bit_in_tensors_of_a_folder_is_seen(sample: str, tmp_path: Path) -> None:
    whole = copy(sample, tmp_path)
    source, seen, tried = random.Random(5), 0, 0
    for path in files_of(whole):
        if path.suffix not in {".pt", ".pth", ".distcp"}:
            continue
        content = path.read_bytes()
        for _ in range(40):
            at = source.randrange(len(content))
            damaged = bytearray(content)
            damaged[at] ^= 1 << source.randrange(8)
            path.write_bytes(damaged)
            tried, seen = tried + 1, seen + (check(whole).health in BROKEN)
        path.write_bytes(content)
    assert seen > tried * 0.2, f"{seen} of {tried}: archives are mostly padding and names, which nobody reads"


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pt"
    evil = b"\x80\x02cos\nsystem\nX\x10\x00\x00\x00touch /tmp/owned\x85R."
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("step-1/data.pkl", evil.replace(b"/tmp/owned", str(tmp_path)[:5].encode() + b"owned"))
        archive.writestr("step-1/version", b"3\n")
    assert check(path).health is Health.VALID
    assert not Path("/tmp/owned").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1.pt"]


@pytest.mark.parametrize(
    "content",
    [
        b"", b"PK\x03\x04", b"PK\x03\x04" + b"\xff" * 5000, b"\x89HDF\r\n\x1a\n",
        b"\x89HDF\r\n\x1a\n" + b"\xff" * 100, b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
        b"\x93NUMPY\x01\x00\x10\x00" + b"[" * 16, b"\x80\x02", b"\x80\x05" + b"(" * 5000, bytes(9000),
        (100).to_bytes(8, "little") + b'{"' + b"[" * 98, (2**63).to_bytes(8, "little") + b'{"',
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["step-1.pt", "step-1.safetensors", "step-1.json"])
def test_rubbish_is_never_valid(content: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert check(tmp_path / name).health in {*BROKEN, Health.UNKNOWN}


def test_what_cannot_be_read_is_not_called_broken(tmp_path: Path) -> None:
    (tmp_path / "loop-1").symlink_to(tmp_path / "loop-1")
    assert check(tmp_path / "loop-1").health is Health.UNREADABLE


def test_a_marker_is_awaited(tmp_path: Path) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "weights").write_bytes(b"x")
    (tmp_path / "step-2.bin").write_bytes(b"x")
    assert check(tmp_path / "step-1", marker="DONE").health is Health.INCOMPLETE
    assert check(tmp_path / "step-2.bin", marker=".ok").health is Health.INCOMPLETE
    (tmp_path / "step-1" / "DONE").touch()
    (tmp_path / "step-2.bin.ok").touch()
    assert check(tmp_path / "step-1", marker="DONE").health is Health.VALID
    assert check(tmp_path / "step-2.bin", marker=".ok").health is Health.VALID


@pytest.mark.parametrize(
    ("inner", "within", "lost"),
    [
        ("dcp/step-40", "pytorch_model_fsdp_0", "__0_0.distcp"),
        ("dcp/step-40", "optimizer_0", ".metadata"),
        ("deepspeed/global_step1", "global_step4", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ],
)
def test_shards_within_a_trainers_checkpoint(inner: str, within: str, lost: str, tmp_path: Path) -> None:
    """As the Trainer and accelerate keep them of FSDP and DeepSpeed."""
    whole = copy("trainer/checkpoint-4", tmp_path)
    shutil.copytree(DATA / inner, whole / within)
    verdict = check(whole)
    assert (verdict.health, verdict.format, verdict.step) == (Health.VALID, "trainer", 4), verdict
    (whole / within / lost).rename(tmp_path / "lost")
    assert check(whole).health is Health.INCOMPLETE
    shutil.copy(tmp_path / "lost", whole / within / lost)
    os.truncate(whole / within / lost, (tmp_path / "lost").stat().st_size // 2)
    assert check(whole).health in BROKEN
