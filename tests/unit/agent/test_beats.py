"""The ranks' own heartbeats: written by the helper for training code, read by the companion of the node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmtrain import training
from slurmtrain.agent import beats
from slurmtrain.agent.processes import Process, read_environ
from slurmtrain.agent.record import Record
from slurmtrain.agent.stragglers import StragglerWatch
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import RunDir

SAYS = """
import time
from slurmtrain.training import heartbeat
for step, busy in {steps}:
    heartbeat(step=step, busy_s=busy)
    time.sleep(1.05)
"""


@pytest.fixture
def folder() -> Iterator[str]:
    path = beats.beats_folder(f"t{os.getpid()}", f"0.{time.monotonic_ns()}")
    yield str(path)
    for child in path.iterdir() if path.is_dir() and not path.is_symlink() else ():
        child.unlink()
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rmdir()


def say(folder: str, rank: int, steps: list[tuple[int, float]], node: str = "n1") -> None:
    root = str(Path(training.__file__).parents[1])
    env = {"SLURMTRAIN_BEATS": folder, "RANK": str(rank), "SLURMD_NODENAME": node, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", SAYS.format(steps=steps)], env={**os.environ, **env}, check=True, timeout=60)


def rank_process(folder: str) -> Process:
    """A process that was started with this folder in its environment, as a rank is."""
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, "SLURMTRAIN_BEATS": folder})
    deadline = time.monotonic() + 30
    while not read_environ(child.pid) and time.monotonic() < deadline:  # the kernel shows it only after the exec
        time.sleep(0.01)
    return Process(child.pid, os.getpid(), 0, 0, "0.1", "3")


def test_each_rank_tells_its_step_its_pace_and_its_work(folder: str) -> None:
    say(folder, 3, [(10, 0.2), (14, 0.25)])
    say(folder, 1, [(9, 0.1)])
    say(folder, 2, [(9, 0.1)], node="n2")
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    one, three = beats.read_paces(folder, "n1")
    assert (one.rank, one.step, one.step_s, one.busy_s) == (1, 9, None, 0.1)
    assert (three.rank, three.step, three.busy_s) == (3, 14, 0.25)
    assert three.step_s is not None
    assert 0.2 < three.step_s < 5
    beats.remove_beats(folder, "n1")
    assert Path(folder).is_dir(), "the other node on this machine still uses it"
    beats.remove_beats(folder, "n2")
    assert not Path(folder).exists()


def test_a_folder_that_others_made_is_neither_written_nor_read(folder: str, tmp_path: Path) -> None:
    Path(folder).symlink_to(tmp_path)
    say(folder, 0, [(1, 0.1)])
    assert list(tmp_path.iterdir()) == []
    Path(folder).unlink()
    Path(folder).mkdir(0o777)
    Path(folder).chmod(0o777)
    say(folder, 0, [(1, 0.1)])
    assert list(Path(folder).iterdir()) == []
    Path(folder, "n1@0").write_text("1 5 - -")
    assert beats.read_paces(folder, "n1") == []


@pytest.mark.parametrize("content", ["", "x", "1 2", "1 nan - -", "1 1e30 - -", "9" * 5000, "1 5 - - -"])
def test_what_makes_no_sense_is_passed_over(folder: str, content: str) -> None:
    Path(folder).mkdir(0o700)
    Path(folder, "n1@0").write_text(content)
    os.mkfifo(f"{folder}/n1@1")
    Path(folder, "n1@2").symlink_to("/etc/passwd")
    Path(folder, "n1@4").write_text("4 5.0 0.5 -")
    assert [pace.rank for pace in beats.read_paces(folder, "n1")] == [4]


def test_the_companion_reports_them_and_a_reader_understands_it(folder: str) -> None:
    Path(folder).mkdir(0o700)
    for rank in range(40):
        Path(folder, f"n1@{rank}").write_text(f"{100 - (rank == 17)} 5.0 {9 if rank == 33 else 1} -")
    process = rank_process(folder)
    try:
        mine = beats.NodeBeats("n1", f"t{os.getpid()}")
        report = json.loads(json.dumps({"node": "n1", "at": 6.0, **mine.report([process])}))
        mine.remove()
    finally:
        subprocess.run(["kill", str(process.pid)], check=True)
    assert not Path(folder).exists()
    paces = beats.read_reported(report, "0.1")
    assert len(paces) == 16
    assert {17, 33} <= {pace.rank for pace in paces}, "the one that is behind and the one that is slow"
    assert beats.read_reported(report, "0.2") == []
    assert beats.read_reported({**report, "paces": [["x"], None, [1, 2, "y", 0, 0]]}, "0.1") == []


def test_launches_that_came_and_went_between_two_looks_leave_nothing(folder: str) -> None:
    other = str(beats.beats_folder(f"t{os.getpid()}9", "0.0"))
    for path in (folder, f"{folder}7", other):
        Path(path).mkdir(0o700)
        Path(path, "n1@0").write_text("4 5.0 0.5 -")
    Path(folder, "n1@0.tmp").write_text("half")
    beats.NodeBeats("n1", f"t{os.getpid()}").remove()
    assert not Path(folder).exists()
    assert not Path(f"{folder}7").exists()
    assert Path(other, "n1@0").exists(), "of another job"
    beats.remove_beats(other, "n1")


def test_a_straggler_is_told_once_and_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    run = RunDir(tmp_path)
    attempt, now = run.attempt(0), [1000.0]
    attempt.nodes.mkdir(parents=True)
    run.journal.mkdir()
    monkeypatch.setattr("slurmtrain.agent.stragglers.time.monotonic", lambda: now[0])
    record = Record(JournalWriter(run.journal, "agent-1"), run.journal, 0)
    watch = StragglerWatch(attempt, 1, 2, record)

    def look(slow: float) -> None:
        now[0] += 61
        for node, rank in (("n1", 0), ("n2", 1)):
            row = [rank, 50, time.time(), 1.0, slow if rank == 1 else 0.2]
            report = {"node": node, "at": time.time(), "launch": "0.1", "paces": [row]}
            (attempt.nodes / f"{node}.json").write_text(json.dumps(report))
        watch.look()

    for slow in [0.9, 0.9, 0.2, 0.9, 0.9]:
        look(slow)
    assert capfd.readouterr().out == "", "now and then is nothing"
    for slow in [0.9, 0.9, 0.9, 0.2, 0.2, 0.2, 0.2]:
        look(slow)
    events = [event for event in read_journal(run.journal) if event.kind == "launch_noticed"]
    assert [(event.rank, event.node, event.over) for event in events] == [(1, "n2", False), (1, "n2", True)]  # type: ignore[attr-defined]
    assert "rank 1 on n2 is slow: 0.9 s at work in a step, the others 0.2 s" in capfd.readouterr().out
