"""The newest valid checkpoint has second names: deleted by the training, it can be brought back."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from slurmtrain.checkpoints import pin as pins
from slurmtrain.checkpoints.find import find_newest
from slurmtrain.checkpoints.pin import PINNED, bring_back, find_pinned, pin_newest, unpin
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError

OPTIONS = Checkpoint()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "r" / "checkpoints").mkdir(parents=True)
    return tmp_path / "r"


def write(run: Path, step: int) -> Path:
    path = run / "checkpoints" / f"step-{step}.json"
    path.write_text(json.dumps({"step": step, "weights": [0.5] * 50}))
    return path


def pin_any(run: Path) -> Path | None:
    """Also one of no known format."""
    found = find_newest(run, OPTIONS)
    return pins.pin(run, OPTIONS, found) if found else None


def test_a_deleted_checkpoint_comes_back(run: Path) -> None:
    path = write(run, 5)
    content = path.read_bytes()
    kept = pin_any(run)
    assert kept is not None
    assert kept.stat().st_ino == path.stat().st_ino, "no copy"
    path.unlink()
    assert bring_back(run, OPTIONS) == ["step-5.json"]
    assert path.read_bytes() == content
    assert bring_back(run, OPTIONS) == [], "what lies there is left alone"


def test_a_newer_one_takes_its_place(run: Path) -> None:
    first = write(run, 5)
    pin_any(run)
    write(run, 6)
    pin_any(run)
    assert [p.name for p in (run / PINNED).iterdir()] == ["step-6.json"]
    assert first.stat().st_nlink == 1, "the older one is let go"
    assert sorted(p.name for p in run.iterdir()) == ["checkpoints", PINNED]


def test_a_folder_with_symbolic_links(run: Path, tmp_path: Path) -> None:
    folder = run / "checkpoints" / "step-7"
    (folder / "shards").mkdir(parents=True)
    (folder / "shards" / "0.bin").write_bytes(b"x" * 100)
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    assert pin_any(run) == run / PINNED / "step-7"
    shutil.rmtree(folder)
    assert bring_back(run, OPTIONS) == ["step-7"]
    assert (folder / "shards" / "0.bin").read_bytes() == b"x" * 100
    assert os.readlink(folder / "link") == "/etc/passwd"  # noqa: PTH115


def test_only_one_that_passes_its_check_is_pinned(run: Path) -> None:
    assert pin_newest(run, OPTIONS) is None
    (run / "checkpoints" / "step-3.pt").write_bytes(b"")
    assert pin_newest(run, OPTIONS) is None
    assert find_pinned(run, OPTIONS) is None


def test_it_is_let_go_by_name(run: Path) -> None:
    write(run, 5)
    pin_any(run)
    unpin(run, OPTIONS, "step-4.json")
    assert find_pinned(run, OPTIONS) == run / PINNED
    unpin(run, OPTIONS, "step-5.json")
    assert find_pinned(run, OPTIONS) is None


def test_checkpoints_on_another_file_system_are_pinned_beside_them(run: Path) -> None:
    other = Path("/dev/shm") / f"st-pin-{os.getpid()}"
    if not other.parent.is_dir() or other.parent.stat().st_dev == run.stat().st_dev:
        pytest.skip("needs a second file system")
    other.mkdir()
    try:
        options = Checkpoint(dir=str(other))
        (other / "step-9.json").write_text("{}")
        found = find_newest(run, options)
        assert found is not None
        assert pins.pin(run, options, found) == other / f".{PINNED}-r" / "step-9.json"
        assert find_newest(run, options) == found, "it is no checkpoint itself"
    finally:
        shutil.rmtree(other)


def test_where_no_second_name_is_possible_it_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    write(run, 5)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreError, match="is not kept from deletion"):
        pin_any(run)
    assert sorted(p.name for p in run.iterdir()) == ["checkpoints"]


def save_folder(run: Path) -> Path:
    """A valid one with a folder in it."""
    folder = run / "checkpoints" / "checkpoint-7"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "state.json").write_text("{}")
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="lowers its rights")
def test_a_folder_that_cannot_be_read_is_not_pinned_in_part() -> None:
    home = Path(tempfile.mkdtemp(prefix="st-pin-", dir="/tmp"))
    try:
        run = home / "r"
        (run / "checkpoints").mkdir(parents=True)
        folder = save_folder(run)
        for path in [home, *home.rglob("*")]:
            os.chown(path, 65534, 65534)
        (folder / "b").chmod(0o000)
        os.seteuid(65534)
        with pytest.raises(StoreError, match=r"is not kept from deletion.*Permission denied"):
            pin_any(run)
        assert find_pinned(run, OPTIONS) is None
        assert sorted(p.name for p in run.iterdir()) == ["checkpoints"]
    finally:
        os.seteuid(0)
        shutil.rmtree(home)


def test_one_that_is_deleted_while_it_is_pinned_is_not_pinned_in_part(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotation goes through the folder at the same time, and is a little ahead."""
    folder, link = save_folder(run), os.link

    def link_and_delete(source: Path, target: Path, **how: bool) -> None:
        link(source, target, **how)
        other = folder / ("b" if Path(source).parent.name == "a" else "a")
        (other / "state.json").unlink(missing_ok=True)

    monkeypatch.setattr(os, "link", link_and_delete)
    with pytest.raises(StoreError, match="No such file"):
        pin_any(run)
    assert find_pinned(run, OPTIONS) is None


def test_one_that_grows_while_it_is_pinned_is_not_pinned_in_part(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, link = save_folder(run), os.link

    def link_and_write(source: Path, target: Path, **how: bool) -> None:
        link(source, target, **how)
        (folder / "a" / "late.json").write_text("{}")

    monkeypatch.setattr(os, "link", link_and_write)
    with pytest.raises(StoreError, match="checkpoint-7 was changed or deleted meanwhile"):
        pin_any(run)
    assert find_pinned(run, OPTIONS) is None


def test_one_that_comes_back_has_its_name_when_all_of_it_is_there(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, link = save_folder(run), os.link
    pin_any(run)
    shutil.rmtree(folder)
    seen = []

    def look(source: Path, target: Path, **how: bool) -> None:
        seen.append(folder.exists())
        if len(seen) == 2:
            raise OSError(28, "No space left on device")
        link(source, target, **how)

    monkeypatch.setattr(os, "link", look)
    with pytest.raises(StoreError, match="No space left on device"):
        bring_back(run, OPTIONS)
    assert list(folder.parent.iterdir()) == [], "nothing half is left"
    monkeypatch.setattr(os, "link", link)
    assert bring_back(run, OPTIONS) == ["checkpoint-7"]
    assert sorted(p.name for p in folder.rglob("state.json")) == ["state.json"] * 2
    assert seen == [False, False]


def test_what_a_kill_left_of_a_pin_is_removed_by_the_next(run: Path) -> None:
    write(run, 5)
    for name, age in ((f".{PINNED}.ab12.tmp", 7200), (f".{PINNED}.ab12.old", 7200), (f".{PINNED}.cd34.tmp", 0)):
        (run / name).mkdir()
        os.utime(run / name, (time.time() - age,) * 2)
    pin_any(run)
    assert sorted(p.name for p in run.iterdir()) == [f".{PINNED}.cd34.tmp", "checkpoints", PINNED], (
        "a young one is at work"
    )
