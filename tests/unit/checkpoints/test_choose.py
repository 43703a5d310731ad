"""Which checkpoint a launch resumes from when some are broken."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from slurmtrain.agent.resume import choose_checkpoint, roll_back
from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.find import choose, find_all, find_written
from slurmtrain.checkpoints.model import Health, Verdict
from slurmtrain.core.spec import Checkpoint
from slurmtrain.store.rundir import RunDir

DATA = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
TORCH = DATA / "torch" / "step-000040.pt"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    return RunDir(tmp_path)


def save(run: RunDir, *steps: int, cut: tuple[int, ...] = ()) -> Path:
    folder = run.path / "checkpoints"
    for step in steps:
        path = folder / f"step-{step:06d}.pt"
        shutil.copy(TORCH, path)
        if step in cut:
            os.truncate(path, 2000)
    return folder


def names(folder: Path) -> list[str]:
    """What lies there, and with a ! what was set aside from there."""
    aside = folder.with_name(f"{folder.name}.set-aside")
    moved = [path.name.rpartition("-")[0] + "!" for path in aside.iterdir()] if aside.exists() else []
    return sorted([*(path.name for path in folder.iterdir()), *moved])


def test_the_newest_whole_one_is_taken_and_broken_newer_ones_are_kept_aside(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(run, 10, 20, 30, 40, cut=(10, 30, 40))
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000020.pt"
    assert names(folder) == ["step-000010.pt", "step-000020.pt", "step-000030.pt!", "step-000040.pt!"]
    assert "step-000040.pt has no end" in capsys.readouterr().out


def test_the_first_save_was_cut_off(run: RunDir) -> None:
    folder = save(run, 10, cut=(10,))
    assert choose_checkpoint(run, Checkpoint()) is None
    assert names(folder) == ["step-000010.pt!"]


def test_where_all_look_broken_the_check_is_in_doubt(run: RunDir) -> None:
    folder = save(run, 10, 20, 30, cut=(10, 20, 30))
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000030.pt"
    assert names(folder) == ["step-000010.pt", "step-000020.pt", "step-000030.pt"]


def test_a_persons_empty_marks_are_passed_over_and_left_alone(run: RunDir) -> None:
    folder = save(run, 10, 20)
    (folder / "step-000020.done").touch()
    (folder / "step-000030").mkdir()
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000020.pt"
    assert names(folder) == ["step-000010.pt", "step-000020.done", "step-000020.pt", "step-000030"]
    assert find_all(run.path, Checkpoint(marker=".done"))[1].path.name == "step-000020.pt"


def test_the_check_can_be_switched_off(run: RunDir) -> None:
    save(run, 10, 20, cut=(20,))
    choice = choose(run.path, Checkpoint(check=False))
    assert choice.newest is not None
    assert choice.newest.path.name == "step-000020.pt"


def test_one_that_cannot_be_read_is_better_than_beginning_anew(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save(run, 10)
    monkeypatch.setattr(
        "slurmtrain.checkpoints.find.check_apart",
        lambda path, **_rest: Verdict(Health.UNREADABLE, "", f"{path.name}: stale"),
    )
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert names(folder) == ["step-000010.pt"]


def test_roll_back_moves_pointers_too(run: RunDir) -> None:
    folder = run.path / "checkpoints"
    for step in (1, 2):
        shutil.copytree(DATA / "deepspeed" / "global_step1", folder / f"global_step{step}")
    (folder / "latest").write_text("global_step2")
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "global_step2"
    roll_back(run, Checkpoint(), found.path, "checkpoint_corrupt")
    assert (folder / "latest").read_text().strip() == "global_step1"
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "global_step1"


@pytest.mark.parametrize(
    ("cause", "loaded", "again", "left"),
    [
        ("checkpoint_corrupt", 30, False, [10, 20, 40]),
        ("nan_loss", 20, False, [10, 20, 30]),  # it had written 30 and 40 itself
        ("nan_loss", 40, False, [10, 20, 30]),  # it had written none
        ("nan_loss", 20, True, [10]),
        ("nan_loss", None, False, [10, 20, 30]),
        ("checkpoint_corrupt", None, False, [10, 20, 30, 40]),
    ],
)
def test_what_a_failed_launch_must_not_be_continued_from(
    run: RunDir, cause: str, loaded: int | None, again: bool, left: list[int]
) -> None:
    folder = run.path / "checkpoints"
    for step in (10, 20, 30, 40):
        shutil.copy(TORCH, folder / f"step-{step:06d}.pt")
    at = None if loaded is None else folder / f"step-{loaded:06d}.pt"
    roll_back(run, Checkpoint(), at, cause, again=again)
    assert [name for name in names(folder) if name[-1] != "!"] == [f"step-{step:06d}.pt" for step in left]


def test_an_unfinished_save_of_deepspeed_and_megatron_is_newer_than_their_pointer(run: RunDir) -> None:
    folder = run.path / "checkpoints"
    for step in (1, 2):
        shutil.copytree(DATA / "deepspeed" / "global_step1", folder / f"global_step{step}")
    (folder / "latest").write_text("global_step1")
    os.utime(folder / "latest", (time.time() - 60, time.time() - 60))
    os.utime(folder / "global_step2")
    choice = choose(run.path, Checkpoint())
    assert choice.newest is not None
    assert choice.newest.path.name == "global_step1"
    shutil.rmtree(folder)
    for step in (100, 200):
        (folder / f"iter_{step:07d}" / "mp_rank_00").mkdir(parents=True)
        shutil.copy(TORCH, folder / f"iter_{step:07d}" / "mp_rank_00" / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("100")
    choice = choose(run.path, Checkpoint())
    assert choice.newest is not None
    assert (choice.newest.path.name, choice.verdict and choice.verdict.format) == ("iter_0000100", "megatron")


def test_tensorflow_parts_are_one_checkpoint(run: RunDir) -> None:
    folder = run.path / "checkpoints"
    footer = bytes(48) + bytes.fromhex("57fb808b247547db")
    for step in (5, 9):
        (folder / f"ckpt-{step}.index").write_bytes(footer)
        (folder / f"ckpt-{step}.data-00000-of-00002").write_bytes(b"x")
        (folder / f"ckpt-{step}.data-00001-of-00002").write_bytes(b"x")
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-9"\n')
    (folder / "ckpt-9.data-00001-of-00002").unlink()
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert (found.path.name, found.step) == ("ckpt-5", 5)
    assert names(folder)[-2:] == ["ckpt-9.data-00000-of-00002!", "ckpt-9.index!"]
    assert (folder / "checkpoint").read_text() == 'model_checkpoint_path: "ckpt-5"\n'


def test_names_for_other_checkpoints_and_pointers_are_none_of_their_own(run: RunDir) -> None:
    folder = save(run, 10)
    (folder / "last.pt").symlink_to("step-000010.pt")
    (folder / "latest").write_text("x")
    (folder / "train.log").write_text("x")
    assert [found.path.name for found in find_all(run.path, Checkpoint())] == ["step-000010.pt"]


def test_a_name_without_a_number_is_placed_by_its_time(run: RunDir) -> None:
    folder = save(run, 10, 20)
    now = time.time()
    os.utime(folder / "step-000010.pt", (now - 100, now - 100))
    os.utime(folder / "step-000020.pt", (now - 50, now - 50))
    shutil.copy(TORCH, folder / "last.pt")
    os.utime(folder / "last.pt", (now - 70, now - 70))
    order = [found.path.name for found in find_all(run.path, Checkpoint())]
    assert order == ["step-000020.pt", "last.pt", "step-000010.pt"]


def test_a_pickle_that_wants_all_memory_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "step-1.pkl"
    bomb = b"\x80\x02N" + b"r\xff\xff\xff\x7f" + b"."  # LONG_BINPUT: room for two thousand million objects
    metadata = tmp_path / "step-2" / ".metadata"
    metadata.parent.mkdir()
    metadata.write_bytes(bomb)
    path.write_bytes(bomb)
    assert check_apart(metadata.parent).health is Health.CORRUPT


def test_a_check_that_hangs_is_left(tmp_path: Path) -> None:
    verdict = check_apart(TORCH, limit_s=0.001)
    assert (verdict.health, "within" in verdict.detail) == (Health.UNREADABLE, True)


@pytest.mark.parametrize(
    ("cut", "old", "expected", "broken"),
    [
        ((), (), 40, ""),
        ((40,), (), 30, "step-000040.pt has no end"),
        ((40, 30), (), 20, "step-000040.pt has no end"),
        ((40,), (40,), 40, ""),  # it was there before: whoever resumes looks at it
        ((10, 20, 30, 40), (), 40, ""),  # then the check itself is in doubt
        ((10, 20, 30, 40), (10,), 10, "step-000040.pt has no end"),
    ],
)
def test_what_a_launch_wrote_last_and_to_its_end(
    run: RunDir, cut: tuple[int, ...], old: tuple[int, ...], expected: int, broken: str
) -> None:
    folder = save(run, 10, 20, 30, 40, cut=cut)
    for step in old:
        os.utime(folder / f"step-{step:06d}.pt", (1000.0, 1000.0))
    found, why = find_written(run.path, Checkpoint(), 2000.0, 20.0)
    assert found is not None
    assert found.step == expected
    assert why.startswith(broken)
    assert bool(why) is bool(broken)
    by_name, _ = find_written(run.path, Checkpoint(check=False), 2000.0, 20.0)
    assert by_name is not None
    assert by_name.step == 40
    unchecked, _ = find_written(run.path, Checkpoint(), 2000.0, 0.0)
    assert unchecked is not None
    assert unchecked.step == 40, "there is no time for a look"
    assert find_written(run.path / "none", Checkpoint(), 2000.0, 20.0) == (None, "")
