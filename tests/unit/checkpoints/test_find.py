"""Which checkpoint is the newest, by names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.checkpoints.find import find_newest, set_aside
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
