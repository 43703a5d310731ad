"""How long a save takes: as the training says it, else from the birth and the last write of what it wrote."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from made_runs import MadeRun

from slurmtrain.checkpoints.find import find_all
from slurmtrain.core.spec import Checkpoint, Spec
from slurmtrain.hosts.birth import read_birth
from slurmtrain.ops import spent
from slurmtrain.store.rundir import HEARTBEAT

SAVE_S = 0.4


@pytest.fixture
def made(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path, "r-1", Spec(command=("train",)))


def write(path: Path, seconds: float) -> None:
    """As torch.save does into another name: the file grows for so long, and is then renamed."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as stream:
        stream.write(b"x")
        stream.flush()
        time.sleep(seconds)
        stream.write(b"x")
    temporary.rename(path)


def measured(made: MadeRun) -> float | None:
    found = find_all(made.dir.path, Checkpoint())
    return spent.measure_run(made.view, found, time.time()).save_s


def test_the_birth_of_a_file_is_known_here(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    born = read_birth(tmp_path / "x")
    assert born == pytest.approx(time.time(), abs=60), "the file system of the tests keeps no birth: they show nothing"
    assert read_birth(tmp_path / "missing") is None


def test_single_files_tell_it(made: MadeRun) -> None:
    for step in (1, 2, 3):
        write(made.dir.path / "checkpoints" / f"step-{step}.pt", SAVE_S)
    assert measured(made) == pytest.approx(SAVE_S, abs=0.35)


def test_one_file_that_is_written_anew_each_time_tells_nothing(made: MadeRun) -> None:
    """``last.pt`` keeps its birth: it would look like a save of many hours."""
    path = made.dir.path / "checkpoints" / "last.pt"
    path.write_bytes(b"x")
    (made.dir.path / "checkpoints" / "best.pt").write_bytes(b"x")
    time.sleep(0.05)
    path.write_bytes(b"y")
    assert measured(made) is None


def test_a_folder_is_measured_from_its_first_file_to_the_last_write(made: MadeRun) -> None:
    folder = made.dir.path / "checkpoints" / "step-1"
    folder.mkdir()
    (folder / "a.pt").write_bytes(b"x")
    time.sleep(SAVE_S)
    (folder / "b.pt").write_bytes(b"x")
    assert measured(made) == pytest.approx(SAVE_S, abs=0.35)


def test_where_no_birth_is_kept_a_file_tells_nothing_and_a_folder_roughly(
    made: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spent, "read_birth", lambda _path: None)
    for step in (1, 2):
        (made.dir.path / "checkpoints" / f"step-{step}.pt").write_bytes(b"x")
    assert measured(made) is None
    folder = made.dir.path / "checkpoints" / "step-3"
    folder.mkdir()
    for name, at in (("a", 1000), ("b", 1030)):
        (folder / name).touch()
        os.utime(folder / name, (at, at))
    assert measured(made) == 30


def test_what_the_training_measured_itself_goes_first(made: MadeRun) -> None:
    for step in (1, 2, 3):
        write(made.dir.path / "checkpoints" / f"step-{step}.pt", 0.1)
    for number, said in enumerate(('3 {"save_s": 7}', '9 {"save_s": 9.0}', "12", '13 {"save_s": "long"}', "\0 {")):
        made.launch(0, number)
        folder = made.dir.attempt(0).launch(number)
        folder.mkdir(parents=True)
        (folder / HEARTBEAT).write_text(said)
    assert measured(made) == 8
