"""Checkpoints that are deleted while they are looked at, as a training that rotates them does: at every single read."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from samples import DATA, SAMPLES, copy, files_of

from slurmtrain.agent.resume import choose_checkpoint
from slurmtrain.checkpoints.check import check
from slurmtrain.checkpoints.find import choose, find_all, list_all
from slurmtrain.checkpoints.model import BROKEN, Health
from slurmtrain.checkpoints.pin import find_pinned, pin_newest
from slurmtrain.core.spec import Checkpoint
from slurmtrain.store.rundir import RunDir

TORCH = DATA / "torch" / "step-000040.pt"
_WATCHED = {"open", "os.scandir", "os.listdir"}


class Deleter:
    """Deletes at the n-th time that something below ``path`` is opened or listed; counts those times."""

    def __init__(self) -> None:
        self.path, self.victim, self.at, self.count = Path(), Path(), -1, 0

    def __call__(self, event: str, args: tuple[object, ...]) -> None:
        if self.at < 0 or event not in _WATCHED or not str(args[0]).startswith(str(self.path)):
            return
        self.count += 1
        if self.count == self.at:
            self.at = 0  # what follows is our own
            shutil.rmtree(self.victim) if self.victim.is_dir() else self.victim.unlink()


DELETER = Deleter()
sys.addaudithook(DELETER)


@contextmanager
def deleted(victim: Path, at: int, within: Path | None = None) -> Iterator[Deleter]:
    DELETER.path, DELETER.victim, DELETER.at, DELETER.count = within or victim, victim, at, 0
    try:
        yield DELETER
    finally:
        DELETER.at = -1


@pytest.mark.parametrize("sample", SAMPLES)
def test_deleted_at_any_read(sample: str, tmp_path: Path) -> None:
    """It is never called whole, and never called broken, for nobody can set it aside."""
    with deleted(tmp_path / "nothing", 10**9, within=tmp_path) as counter:
        check(copy(sample, tmp_path))
        reads = counter.count
    assert reads > 0
    for at in range(1, reads + 1):
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()
        path = copy(sample, tmp_path)
        with deleted(path, at):
            verdict = check(path)
        assert path.exists() or verdict.health is Health.GONE, (at, reads, verdict)
        assert path.exists() or verdict.detail == f"{path.name} was deleted while it was checked"


@pytest.mark.parametrize(
    "sample", ["sharded/model-40", "dcp/step-40", "deepspeed/global_step1", "trainer/checkpoint-4"]
)
def test_a_part_that_is_deleted_at_any_read(sample: str, tmp_path: Path) -> None:
    """The rest is there: broken, and the sentence names what was lost. What a program can do without may go."""
    for victim in files_of(copy(sample, tmp_path)):
        for at in (1, 2, 3, 5, 8):
            shutil.rmtree(tmp_path)
            tmp_path.mkdir()
            path = copy(sample, tmp_path)
            with deleted(victim, at, within=path):
                verdict = check(path)
            if not victim.exists() and verdict.health is not Health.VALID:
                assert verdict.health in BROKEN, (victim, at, verdict)
                assert "lost" in verdict.detail or "no " in verdict.detail or "lacks" in verdict.detail, verdict
            assert verdict.health is not Health.VALID or check(path).health is not Health.GONE


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "checkpoints").mkdir()
    return RunDir(tmp_path)


def save(run: RunDir, step: int) -> Path:
    return Path(shutil.copy(TORCH, run.path / "checkpoints" / f"step-{step:06d}.pt"))


VANISHING = """
def matches(path):
    if (path.parent / f".vanish-{path.name}").exists():
        path.unlink()
    return False
def check(path, deep): return None
"""


def vanish(run: RunDir, *paths: Path) -> None:
    """They are deleted once the check has begun to read them."""

    (run.path / "formats.json").write_text(json.dumps({"vanishing": VANISHING}))
    for path in paths:
        (path.parent / f".vanish-{path.name}").touch()


def test_the_next_older_one_is_taken_and_it_is_said(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [save(run, step) for step in (10, 20, 30, 40, 50)]
    vanish(run, *paths[1:])
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path == paths[0], "four that are deleted do not cast doubt upon the check"
    assert "step-000050.pt was deleted while it was checked; it is passed over" in capsys.readouterr().out
    assert not (run.path / "checkpoints.set-aside").exists()


def test_what_a_rotation_has_written_meanwhile_is_found(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were listed are gone when it is their turn: the folder is listed anew."""
    old, newest = save(run, 10), run.path / "checkpoints" / "step-000020.pt"

    def list_late(run_dir: Path, checkpoint: Checkpoint) -> object:
        found = list_all(run_dir, checkpoint)
        if old.exists():
            old.rename(newest)
        return found

    monkeypatch.setattr("slurmtrain.checkpoints.find.list_all", list_late)
    choice = choose(run.path, Checkpoint())
    assert choice.newest is not None
    assert choice.newest.path == newest


def test_one_that_goes_after_its_check_is_not_handed_over(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurmtrain.checkpoints import find

    old, newest = save(run, 10), save(run, 20)
    checked = find.check_apart

    def check_and_delete(path: Path, **rest: object) -> object:
        verdict = checked(path, **rest)  # type: ignore[arg-type]
        newest.unlink(missing_ok=True)
        return verdict

    monkeypatch.setattr(find, "check_apart", check_and_delete)
    choice = choose(run.path, Checkpoint())
    assert choice.newest is not None
    assert choice.newest.path == old


def test_a_folder_that_is_deleted_while_it_is_listed_hides_no_other(run: RunDir) -> None:
    """pathlib ends its whole search where a folder on the way is gone (until Python 3.12)."""
    folder = run.path / "checkpoints"
    for number in (1, 2, 3):
        (folder / f"run-{number}").mkdir()
        shutil.copy(TORCH, folder / f"run-{number}" / f"step-{number}.pt")
    with deleted(folder / "run-2", 2, within=folder):
        found = find_all(run.path, Checkpoint(pattern="run-*/step-*.pt"))
    assert [one.path.name for one in found] in (["step-3.pt", "step-1.pt"], ["step-3.pt", "step-2.pt", "step-1.pt"])
    assert not (folder / "run-2").exists()


def test_one_that_is_deleted_while_it_is_pinned_leaves_the_older_pin(run: RunDir) -> None:
    old = save(run, 10)
    pin_newest(run.path, Checkpoint())
    vanish(run, save(run, 20))
    assert pin_newest(run.path, Checkpoint()) is not None
    place = find_pinned(run.path, Checkpoint())
    assert place is not None
    assert [path.name for path in place.iterdir()] == [old.name]


def test_the_kept_one_comes_back_where_a_rotation_took_broken_ones_for_the_newest(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 10, 20, 30 the training deletes 20 after it has saved 30; 30 turns out to be cut, and 10 is far behind."""
    for step in (10, 20):
        save(run, step)
    pin_newest(run.path, Checkpoint())
    (run.path / "checkpoints" / "step-000020.pt").unlink()
    os.truncate(save(run, 30), 2000)
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000020.pt"
    assert "step-000020.pt, which had been kept from deletion, is there again" in capsys.readouterr().out


def test_one_that_a_person_deleted_stays_deleted(run: RunDir) -> None:
    for step in (10, 20):
        save(run, step)
    pin_newest(run.path, Checkpoint())
    (run.path / "checkpoints" / "step-000020.pt").unlink()
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000010.pt"


def test_where_all_look_broken_the_kept_one_is_trusted_more(run: RunDir) -> None:
    save(run, 10)
    pin_newest(run.path, Checkpoint())
    (run.path / "checkpoints" / "step-000010.pt").unlink()
    for step in (20, 30, 40):
        os.truncate(save(run, step), 2000)
    found = choose_checkpoint(run, Checkpoint())
    assert found is not None
    assert found.path.name == "step-000010.pt"


@pytest.mark.parametrize("named", ["global_step3", ""], ids=["deleted", "cut off while it was written"])
def test_latest_names_what_is_handed_over_where_it_named_nothing(run: RunDir, named: str) -> None:
    """DeepSpeed writes ``latest`` over itself: a kill in that moment leaves it empty."""
    folder = run.path / "checkpoints"
    shutil.copytree(DATA / "deepspeed" / "global_step1", folder / "global_step1")
    (folder / "latest").write_text(named)
    found = choose_checkpoint(run, Checkpoint(pattern="global_step*"))
    assert found is not None
    assert (folder / "latest").read_text().strip() == found.path.name == "global_step1"


def test_a_tracker_that_names_nothing(run: RunDir) -> None:
    folder = run.path / "checkpoints"
    (folder / "iter_0000100" / "mp_rank_00").mkdir(parents=True)
    shutil.copy(TORCH, folder / "iter_0000100" / "mp_rank_00" / "model_optim_rng.pt")
    tracker = folder / "latest_checkpointed_iteration.txt"
    for text, wanted in (("200", "0000100"), ("100", "100"), ("release", "release")):
        tracker.write_text(text)
        assert choose_checkpoint(run, Checkpoint()) is not None
        assert tracker.read_text().strip().lstrip("0") == wanted.lstrip("0"), text


def test_no_latest_is_made_where_the_training_writes_none(run: RunDir) -> None:
    folder = run.path / "checkpoints"
    shutil.copytree(DATA / "deepspeed" / "global_step1", folder / "global_step1")
    assert choose_checkpoint(run, Checkpoint()) is not None
    assert not (folder / "latest").exists()


def test_what_is_set_aside_lies_where_no_training_rotates_it(run: RunDir) -> None:
    """Hugging Face's Trainer takes ``checkpoint-9.set-aside`` for its step 9, and deletes what is older."""
    folder = run.path / "checkpoints"
    shutil.copytree(DATA / "trainer" / "checkpoint-4", folder / "checkpoint-4")
    shutil.copytree(DATA / "trainer" / "checkpoint-4", folder / "checkpoint-9")
    (folder / "checkpoint-9" / "trainer_state.json").unlink()
    assert choose_checkpoint(run, Checkpoint()) is not None
    assert [path.name for path in folder.iterdir()] == ["checkpoint-4"]
    (aside,) = (run.path / "checkpoints.set-aside").iterdir()
    assert aside.name.startswith("checkpoint-9-")
    assert (aside / "model.safetensors").exists()


def test_where_nothing_may_be_made_beside_the_folder_it_keeps_its_place(run: RunDir) -> None:
    (run.path / "checkpoints.set-aside").write_text("a file of somebody's")
    save(run, 10)
    os.truncate(save(run, 20), 2000)
    assert choose_checkpoint(run, Checkpoint()) is not None
    left = sorted(path.name for path in (run.path / "checkpoints").iterdir())
    assert left[0] == "step-000010.pt"
    assert left[1].startswith("step-000020.pt.set-aside-")
    assert [one.path.name for one in find_all(run.path, Checkpoint())] == ["step-000010.pt"]
