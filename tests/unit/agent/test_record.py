"""The agent's record on a store that fails: nothing is raised, nothing is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest
from agent_support import Scene

from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.run import fold
from slurmtrain.errors import StoreError
from slurmtrain.store.journal import JournalWriter, read_journal

AGAIN = Decision(Action.RESTART_IN_PLACE, RunState.RUNNING, "native_crash", "why", "program")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def fail(record: object, number: int) -> None:
    """What the agent writes about one launch that is started again."""
    record.launch_started(number, "logs/x", 0, None)  # type: ignore[attr-defined]
    record.decided(number, AGAIN)  # type: ignore[attr-defined]


def test_launches_that_could_not_be_written_down_still_count(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a full disk means restarts in place without end."""
    record = scene.claim()
    monkeypatch.setattr(JournalWriter, "append", _full)
    for number in range(3):
        fail(record, number)
        launches = record.read_run().attempts[0].launches
        assert sum(launch.decision is not None for launch in launches) == number + 1


def test_they_are_written_as_soon_as_there_is_room(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    record = scene.claim()
    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "append", _full)
        fail(record, 0)
    fail(record, 1)
    launches = fold(read_journal(scene.run.journal)).attempts[0].launches
    assert [launch.number for launch in launches] == [0, 1]
    assert all(launch.decision is not None for launch in launches)
    events = [(e.kind, e.launch) for e in read_journal(scene.run.journal)]
    assert len(events) == len(set(events)), "once each"


def test_a_full_store_is_told_once_and_its_end_written_down(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = scene.claim()
    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "append", _full)
        fail(record, 0)
        record.catch_up()  # too early: a full store is not asked at every turn
        said = capsys.readouterr().out
        assert said.count("the training goes on") == 1
    monkeypatch.setattr("slurmtrain.agent.record._TRY_AGAIN_S", 0.0)
    record._next_try = 0.0
    record.catch_up()
    assert "can be written again" in capsys.readouterr().out
    kinds = [event.kind for event in read_journal(scene.run.journal)]
    assert kinds.count("store_trouble") == 1
    assert kinds.count("launch_started") == 1
    record.catch_up()
    assert [event.kind for event in read_journal(scene.run.journal)] == kinds


def test_a_journal_that_cannot_be_read_leaves_what_is_known(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    record = scene.claim()
    fail(record, 0)
    assert len(record.read_run().attempts[0].launches) == 1

    def broken(*_args: object, **_kwargs: object) -> None:
        raise StoreError("stale")

    monkeypatch.setattr("slurmtrain.agent.record.read_journal", broken)
    fail(record, 1)
    assert [launch.number for launch in record.read_run().attempts[0].launches] == [0, 1]


def test_one_unreadable_file_does_not_hide_the_others(scene: Scene) -> None:
    record = scene.claim()
    fail(record, 0)
    (scene.run.journal / "somebody.jsonl").mkdir()  # reading it fails, for root too
    fail(record, 1)
    assert [launch.number for launch in record.read_run().attempts[0].launches] == [0, 1]
    with pytest.raises(StoreError):
        read_journal(scene.run.journal)


def _full(*_args: object, **_kwargs: object) -> None:
    raise StoreError("cannot write the journal: No space left on device")
