"""The journal: order without clocks, and reading whatever a crash left behind."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core import events as ev
from slurmtrain.errors import StoreError
from slurmtrain.store.journal import JournalWriter, read_journal, read_what_can_be_read


def seen(state: str, attempt: int = -1, at: float = 0.0) -> ev.JobSeen:
    return ev.JobSeen(at=at, who="watcher", attempt=attempt, job_id="1", restart_count=0, state=state)


def states(directory: Path) -> list[str]:
    return [event.state for event in read_journal(directory) if isinstance(event, ev.JobSeen)]


def test_what_a_writer_knew_sorts_before_what_it_wrote_whatever_the_clocks_say(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path, "login")
    first.append(seen("A", at=1e9))
    second = JournalWriter(tmp_path, "node")  # opens later, with a clock that is years behind
    second.append(seen("B", at=1.0))
    first.catch_up()
    first.append(seen("C", at=5.0))
    assert states(tmp_path) == ["A", "B", "C"]


def test_attempts_come_in_order(tmp_path: Path) -> None:
    late, early = JournalWriter(tmp_path, "b"), JournalWriter(tmp_path, "a")
    late.append(seen("second", attempt=1))
    early.append(seen("first", attempt=0))
    assert states(tmp_path) == ["first", "second"]


def test_events_survive_the_round_trip(tmp_path: Path) -> None:
    event = ev.LaunchEnded(
        at=1.5, who="agent", attempt=0, launch=2, exit_code=7, rank_exits=({"rank": 3, "node": "n1"},), stop_reason="x"
    )
    JournalWriter(tmp_path, "w").append(event, sync=True)
    assert read_journal(tmp_path) == [event]


@pytest.mark.parametrize(
    "garbage",
    [b'{"seq":', b"\xff\xfe\n", b"[]\n", b'{"seq":1}\n', b'{"seq":"x","kind":"job_seen","at":1}\n', b"null\n",
     b'{"seq":9999999999999999999999,"kind":"job_seen","at":1}\n', b"[" * 5000 + b"\n"],
)  # fmt: skip
def test_a_torn_or_foreign_line_costs_only_itself(tmp_path: Path, garbage: bytes) -> None:
    writer = JournalWriter(tmp_path, "w")
    writer.append(seen("A"))
    with (tmp_path / "other.jsonl").open("wb") as stream:
        stream.write(garbage)
    writer.append(seen("B"))
    assert states(tmp_path) == ["A", "B"]


def test_after_a_full_disk_the_next_line_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = JournalWriter(tmp_path, "w")
    writer.append(seen("A"))
    real = os.write

    def short(descriptor: int, data: bytes) -> int:
        if len(data) > 10:
            return real(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", lambda d, data: short(d, data[:25]))
    with pytest.raises(StoreError, match="No space left"):
        writer.append(seen("lost"))
    monkeypatch.undo()
    writer.append(seen("B"))
    assert states(tmp_path) == ["A", "B"]


def test_a_kind_of_a_later_version_is_kept_for_people(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps({"seq": 1, "kind": "teleported", "at": 1, "who": "x"}) + "\n")
    (event,) = read_journal(tmp_path)
    assert isinstance(event, ev.UnknownEvent)
    assert event.data["kind"] == "teleported"


def test_hostile_writer_names_stay_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "j").mkdir()
    JournalWriter(tmp_path / "j", "../../etc/$(rm -rf x)\n").append(seen("A"))
    (path,) = (tmp_path / "j").iterdir()
    assert path.parent == tmp_path / "j"
    assert states(tmp_path / "j") == ["A"]


@given(st.binary(max_size=2000))
def test_no_bytes_break_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("journal")
    (folder / "w.jsonl").write_bytes(data)
    read_journal(folder)


def test_a_fifo_in_the_journal_is_named_and_not_waited_for(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "agent").append(seen("RUNNING"))
    os.mkfifo(tmp_path / "fifo.jsonl")
    events, (damage,) = read_what_can_be_read(tmp_path)
    assert [event.state for event in events if isinstance(event, ev.JobSeen)] == ["RUNNING"]
    assert "fifo.jsonl" in damage
    with pytest.raises(StoreError, match="no regular file"):
        read_journal(tmp_path)
