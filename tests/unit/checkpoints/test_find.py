"""Which checkpoint is the newest, by names alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.checkpoints import listing
from slurmtrain.checkpoints.find import choose, find_all, find_newest, set_aside
from slurmtrain.core.spec import Checkpoint


def make(folder: Path, *names: str) -> None:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("names", "newest", "step"),
    [
        (["step-9.pt", "step-10.pt"], "step-10.pt", 10),
        (["epoch=1-step=500.ckpt", "epoch=2-step=1000.ckpt"], "epoch=2-step=1000.ckpt", 1000),
        (["iter_0000100/", "iter_0000200/", "latest.txt"], "iter_0000200", 200),
        (["s-1764438450434767123.x", "s-1764438450434767124.x"], "s-1764438450434767124.x", 1764438450434767124),
        (["step-5.pt", "step-9.pt.tmp", ".step-8.pt", "step-7.pt.part"], "step-5.pt", 5),
        (["model.bin"], "model.bin", None),
    ],
)  # fmt: skip
def test_the_newest(tmp_path: Path, names: list[str], newest: str, step: int | None) -> None:
    make(tmp_path / "checkpoints", *names)
    found = find_newest(tmp_path, Checkpoint())
    assert found is not None
    assert (found.path.name, found.step) == (newest, step)


def test_what_was_set_aside_is_kept_and_not_handed_out(tmp_path: Path) -> None:
    make(tmp_path / "checkpoints", "step-1.pt", "step-2.pt")
    aside = set_aside(tmp_path / "checkpoints" / "step-2.pt")
    assert aside.exists()
    found = find_newest(tmp_path, Checkpoint())
    assert found is not None
    assert found.path.name == "step-1.pt"


@pytest.mark.parametrize("pattern", ["*", "**", "/etc/*", "[", ""])
def test_no_folder_and_strange_patterns_find_nothing(tmp_path: Path, pattern: str) -> None:
    assert find_newest(tmp_path / "absent", Checkpoint(pattern=pattern)) is None


def touch(folder: Path, times: dict[str, int]) -> None:
    folder.mkdir(exist_ok=True)
    for name, at in times.items():
        (folder / name).touch()
        os.utime(folder / name, (at, at))


@given(
    st.dictionaries(st.sampled_from([*(f"step-{n}.pt" for n in range(6)), "a.pt", "b.pt", "c.pt"]), st.integers(1, 5))
)
def test_one_without_a_number_is_placed_by_its_time(times: dict[str, int]) -> None:
    """Before the first of the others that is not younger; among themselves the newest first."""
    with TemporaryDirectory() as folder:
        touch(Path(folder) / "checkpoints", times)
        names = [one.path.name for one in find_all(Path(folder), Checkpoint())]
    numbered = [name for name in names if "-" in name]
    assert numbered == sorted(numbered, reverse=True)
    assert set(names) == set(times)
    for place, name in enumerate(names):
        if "-" not in name:
            assert all(times[other] > times[name] for other in names[:place] if "-" in other)
            assert all(times[other] <= times[name] for other in names[place + 1 :][:1])


def test_tens_of_thousands_of_names_take_seconds(tmp_path: Path) -> None:
    """All of the numbered ones are younger than each of the others: the most comparisons."""
    touch(tmp_path / "checkpoints", {f"step-{n}.pt": 2000 for n in range(25_000)})
    letters = str.maketrans("0123456789", "abcdefghij")
    touch(tmp_path / "checkpoints", {f"{str(n).translate(letters)}.pt": 1000 for n in range(25_000)})
    began = time.monotonic()
    found = find_all(tmp_path, Checkpoint())
    assert time.monotonic() - began < 20, "it took 45 s, and four times as long for twice as many"
    assert len(found) == 50_000
    assert found[0].step == 24_999


@pytest.mark.parametrize(("bound", "value"), [("MOST_LOOKED_AT", 50), ("LOOK_S", 0.0)])
def test_of_too_many_names_the_highest_numbers_are_looked_at_and_it_is_said(
    bound: str, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "checkpoints", {f"img-{n:05d}.pt": 1000 + n for n in range(300)})
    monkeypatch.setattr(listing, bound, value)
    choice = choose(tmp_path, Checkpoint(check=False))
    assert choice.newest is not None
    assert choice.newest.step == 299
    left = 250 if bound == "MOST_LOOKED_AT" else 299
    assert f"that {left} of them were not looked at" in choice.left_out


def test_a_link_to_one_is_no_other(tmp_path: Path) -> None:
    make(tmp_path / "checkpoints", "step-1.pt", "step-2.pt")
    make(tmp_path / "elsewhere", "w.pt")
    (tmp_path / "checkpoints" / "last.pt").symlink_to("step-2.pt")
    (tmp_path / "checkpoints" / "step-3.pt").symlink_to(tmp_path / "elsewhere" / "w.pt")
    (tmp_path / "checkpoints" / "step-4.pt").symlink_to("nowhere")
    (tmp_path / "checkpoints" / "step-5.pt").symlink_to("step-5.pt")
    assert [one.path.name for one in find_all(tmp_path, Checkpoint())] == ["step-3.pt", "step-2.pt", "step-1.pt"]
