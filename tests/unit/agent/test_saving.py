"""What is told about saving at the end, and what counts as a save in progress."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.agent.saving import SaveWatch, describe_saving
from slurmtrain.checkpoints.find import Found
from slurmtrain.training import atomic_save


def found(name: str, modified: float) -> Found:
    return Found(Path(f"/c/{name}"), 400, modified)


@pytest.mark.parametrize(
    ("newest", "asked", "words"),
    [
        (found("step-400.pt", 1988), 1980.0, "saved step-400.pt, 12 s before the end"),
        (found("step-400.pt", 1820), 1980.0, "not saved: 3 min of work since step-400.pt are lost"),
        (found("step-400.pt", 900), 1980.0, "not saved: the 16 min 40 s of work of this launch are lost"),
        (None, 1980.0, "not saved: there is no checkpoint, and 16 min 40 s of work are lost"),
        (found("step-400.pt", 1950), None, "not saved: 50 s of work since step-400.pt are lost"),
    ],
)
def test_what_came_too_late_is_told(newest: Found | None, asked: float | None, words: str) -> None:
    assert describe_saving(newest, 1000.0, asked, 2000.0) == words


@pytest.mark.parametrize(
    ("newest", "words"),
    [
        (found("step-380.pt", 1940), "not saved: step-400.pt has no end; 1 min of work since step-380.pt are lost"),
        (
            found("step-380.pt", 900),
            "not saved: step-400.pt has no end; the 16 min 40 s of work of this launch are lost",
        ),
        (None, "not saved: step-400.pt has no end; 16 min 40 s of work are lost"),
        (found("step-380.pt", 1990), "saved step-380.pt, 10 s before the end; step-400.pt has no end"),
    ],
)
def test_a_save_that_was_cut_off_is_none(newest: Found | None, words: str) -> None:
    assert describe_saving(newest, 1000.0, 1980.0, 2000.0, "step-400.pt has no end") == words


def test_a_file_that_grows_is_a_save_in_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("slurmtrain.agent.saving.time.monotonic", lambda: now[0])
    (tmp_path / "step-1").mkdir()
    part = tmp_path / "step-1" / ".shard.tmp"
    part.write_bytes(b"x")
    watch = SaveWatch(tmp_path)
    assert not watch.in_progress(), "what lies there may be old"
    now[0] += 2
    part.write_bytes(b"xx")
    assert watch.in_progress()
    now[0] += 5
    assert watch.in_progress()
    now[0] += 5
    assert not watch.in_progress()
    assert not SaveWatch(tmp_path / "none").in_progress()


def test_a_folder_that_atomic_save_writes_is_a_save_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = SaveWatch(tmp_path)
    (tmp_path / "step-4" / "inner").mkdir(parents=True)
    with atomic_save(tmp_path / "step-5", folder=True) as path:
        (path / "inner").mkdir()
        for place in (path, path / "inner"):
            for text in ("x", "xx"):
                (place / "weights").write_text(text)
                monkeypatch.setattr(watch, "_next_look", 0.0)
                monkeypatch.setattr(watch, "_changed_at", None)
                seen = watch.in_progress()
            assert seen, place
