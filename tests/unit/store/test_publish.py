"""Publishing once: one winner whatever the file system refuses, and never half a file."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from slurmtrain.errors import StoreError
from slurmtrain.store import publish
from slurmtrain.store.publish import publish_once, read_json, read_published, replace, to_json


def _race(path: str, number: int, links: bool, start: multiprocessing.synchronize.Event, results: object) -> None:
    if not links:
        os.link = _refuse_links  # type: ignore[assignment]
    start.wait()
    results.put((number, publish_once(Path(path), b"%d" % number)))  # type: ignore[attr-defined]


def _refuse_links(*_args: object, **_kwargs: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "Operation not supported")


@pytest.mark.parametrize("links", [True, False])
def test_of_many_processes_one_wins(tmp_path: Path, links: bool) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    path = tmp_path / "decision.json"
    processes = [context.Process(target=_race, args=(str(path), n, links, start, results)) for n in range(12)]
    for process in processes:
        process.start()
    start.set()
    answers = [results.get(timeout=30) for _ in processes]
    for process in processes:
        process.join()
    winners = [number for number, won in answers if won]
    assert len(winners) == 1
    assert read_published(path) == b"%d" % winners[0]
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".tmp")]


def test_a_link_reported_as_failed_although_made_counts_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def lying(source: Path, target: Path) -> None:
        real(source, target)
        raise OSError(errno.EEXIST, "File exists")  # an NFS client whose first reply was lost

    monkeypatch.setattr(os, "link", lying)
    assert publish_once(tmp_path / "d", b"mine")
    assert not publish_once(tmp_path / "d", b"other")
    assert read_published(tmp_path / "d") == b"mine"


def test_without_links_the_second_loses_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", _refuse_links)
    monkeypatch.setattr(publish, "read_published", lambda _path: None)  # as an NFS client that has not seen it yet
    assert publish_once(tmp_path / "d", b"first")
    assert not publish_once(tmp_path / "d", b"second")
    monkeypatch.undo()
    assert read_published(tmp_path / "d") == b"first"


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"cannot write .*decision\.json: No space left on device"):
        publish_once(tmp_path / "decision.json", b"x")
    assert list(tmp_path.iterdir()) == [], "nothing half done stays behind"


def test_replace_shows_the_old_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace(path, to_json({"a": 1}))
    replace(path, to_json({"a": 2}))
    assert json.loads(path.read_bytes()) == {"a": 2}
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_what_is_no_object_reads_as_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    assert read_json(tmp_path / "f") is None
    assert read_json(tmp_path / "absent") is None


def test_a_fifo_in_the_place_of_a_file_is_told_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "decision.json")
    with pytest.raises(StoreError, match="no regular file"):
        read_json(tmp_path / "decision.json")


def test_a_file_that_nobody_could_have_published_is_not_read_into_memory(tmp_path: Path) -> None:
    (tmp_path / "plan.json").touch()
    os.truncate(tmp_path / "plan.json", 1 << 40)
    with pytest.raises(StoreError, match="larger"):
        read_json(tmp_path / "plan.json")


def test_json_that_is_nested_without_end_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"a":' * 200_000)
    assert read_json(tmp_path / "plan.json") is None
