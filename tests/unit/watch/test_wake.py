"""Waking early, and the loop around it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from slurmtrain.store.inbox import drop, empty, inbox_of
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import FaultKind, MemorySlurm
from slurmtrain.watch import wake
from slurmtrain.watch.loop import Watcher


@pytest.mark.parametrize("local", [True, False])
def test_a_dropped_file_wakes_the_watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    monkeypatch.setattr(wake, "is_local", lambda _path: local)
    monkeypatch.setattr(wake, "_POLL_S", 0.2)
    run = RunDir(tmp_path / "runs" / "run-1")
    with wake.InboxBell(inbox_of(tmp_path)) as bell:
        assert not bell.wait(0.6), "nothing has happened yet"
        threading.Timer(0.2, drop, (run, "0-decided")).start()
        began = time.monotonic()
        assert bell.wait(20)
        assert time.monotonic() - began < 10
    assert empty(tmp_path) == 1
    assert empty(tmp_path) == 0


def test_a_drop_into_a_read_only_store_costs_nothing(tmp_path: Path) -> None:
    drop(RunDir(tmp_path / "absent" / "runs" / "x"), "word")
    assert empty(tmp_path / "absent") == 0


def test_the_loop_leaves_when_it_is_told_and_gives_the_lease_back(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path, MemorySlurm(), 3600.0)
    thread = threading.Thread(target=watcher.run)
    thread.start()
    time.sleep(0.5)
    watcher.stop()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert Watcher(tmp_path, MemorySlurm(), 60.0).look_once().held_by == ""


def test_it_waits_longer_while_slurm_is_away(tmp_path: Path) -> None:
    slurm = MemorySlurm()
    slurm.inject(FaultKind.UNAVAILABLE, times=100)
    watcher = Watcher(tmp_path, slurm, 30.0)
    pauses = []
    for failures in (0, 1, 2, 3, 10, 1000):
        watcher._failures = failures
        pauses.append(watcher._pause())
    assert pauses == sorted(pauses) or pauses[-1] > 500
    assert 27 <= pauses[0] <= 33
    assert max(pauses) <= 660
