"""Signs of life of a launch: what counts as one, and how seldom they are looked at."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from slurmtrain.agent.hang import HangWatch, explain_hang
from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.checkpoints.pointers import read_latest
from slurmtrain.core.spec import Hang, Resources, Spec
from slurmtrain.logs.step import read_step


class Watched:
    """A launch whose clock is moved by hand."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, hang: Hang) -> None:
        self.log, self.heartbeat, self.now = folder / "log", folder / "heartbeat", 1000.0
        self.log.write_text("begins\n")
        monkeypatch.setattr("slurmtrain.agent.hang.time.monotonic", lambda: self.now)
        self.looks = 0
        real = os.stat

        def stat(path: object, *args: object, **options: object) -> os.stat_result:
            self.looks += str(path).startswith(str(folder))
            return real(path, *args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "stat", stat)
        process = subprocess.Popen(["true"])
        process.wait()
        launch = LaunchProcess(0, process, self.log, 0, 0.0, folder)
        self.launch = launch
        self.watch = HangWatch(hang, launch, folder / "checkpoints")

    def write(self, line: str) -> None:
        with self.log.open("a") as stream:
            stream.write(line + "\n")

    def after(self, seconds: float) -> float | None:
        self.now += seconds
        silence = self.watch.look()
        return silence.seconds if silence is not None else None


def test_output_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, Hang(timeout_s=100, startup_s=0))
    assert watched.after(0) is None
    assert watched.after(90) is None
    watched.log.write_text("begins\ngoes on\n")
    assert watched.after(50) is None
    assert watched.after(99) is None
    assert watched.after(10) == 109


def test_silence_says_nothing_once_a_full_store_has_cut_the_log_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun writes nothing more until the launch ends, and a heartbeat cannot be written while there is no room."""
    watched = Watched(tmp_path, monkeypatch, Hang(timeout_s=100, startup_s=0))
    assert watched.after(0) is None
    watched.launch.log_is_full = watched.launch.log_was_full = True
    assert watched.after(500) is None
    watched.launch.log_is_full = False
    assert watched.after(500) is None, "its output is lost for good"
    watched.heartbeat.write_text("1 {}")
    assert watched.after(90) is None
    assert watched.after(60) is None
    assert watched.after(60) == 120, "from then on its heartbeat tells"


def test_without_a_time_out_a_heartbeat_makes_it_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, Hang(startup_s=0))
    assert watched.after(0) is None
    assert watched.after(100_000) is None
    watched.heartbeat.write_text("7 {}\n")
    assert watched.after(40) is None
    assert watched.after(1801) == 1801


@pytest.mark.parametrize("hang", [Hang(), Hang(timeout_s=1800)])
def test_shared_storage_is_left_alone_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    watched = Watched(tmp_path, monkeypatch, hang)
    watched.after(0)
    seen = watched.looks
    for _ in range(14):
        watched.after(2)
    assert watched.looks == seen


STEPS = Hang(step_timeout_s=100, startup_s=0)


def test_output_without_a_new_step_is_a_hang_where_steps_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(tmp_path, monkeypatch, STEPS)
    for _ in range(5):
        watched.write("loading shard")
        assert watched.after(90) is None, "before the first step nothing is known"
    watched.write("step 7/100 loss 0.5")
    assert watched.after(10) is None
    watched.write("waiting for data, step 7/100 loss 0.5")
    assert watched.after(60) is None
    watched.write("step 7/100 loss 0.5")
    assert watched.after(50) == 110
    watched.write("step 8/100 loss 0.4")
    assert watched.after(10) is None


def test_a_counter_that_begins_anew_and_a_heartbeat_are_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, STEPS)
    for epoch in range(6):
        watched.write(f"0: step 500/500 loss 0.{epoch}")
        assert watched.after(60) is None
    for step in range(6):
        watched.heartbeat.write_text(f"{step} {{}}\n")
        assert watched.after(60) is None
    assert watched.after(60) is None
    assert watched.after(60) == 120


def test_an_announced_pause_needs_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, STEPS)
    watched.heartbeat.write_text(f'7 {{"pause_until": {time.time() + 1000}}}')
    for _ in range(4):
        assert watched.after(90) is None


@pytest.mark.parametrize("until", ["Infinity", "1e300", "9e9"])
def test_a_pause_of_weeks_is_a_slip(until: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, STEPS)
    watched.heartbeat.write_text(f'7 {{"pause_until": {until}}}')
    assert any(watched.after(90) is not None for _ in range(4))


def test_a_pipe_where_the_heartbeat_should_be_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, STEPS)
    os.mkfifo(watched.heartbeat)
    assert watched.after(90) is None
    assert read_step(watched.heartbeat, []) is None
    os.mkfifo(tmp_path / "latest")
    assert read_latest(tmp_path) is None


def ranks_of(folder: Path, states: dict[int, tuple[str, int | None]]) -> None:
    rows = [{"rank": rank, "pid": 1, "state": state, "step": step} for rank, (state, step) in states.items()]
    (folder / "ranks-n1.json").write_text(json.dumps({"node": "n1", "ranks": rows}))


def explained(folder: Path, spec: Spec) -> tuple[str, int | None, str | None]:
    process = subprocess.Popen(["true"])
    process.wait()
    return explain_hang(LaunchProcess(0, process, folder / "log", 0, 0.0, folder), spec)


def test_the_rank_with_the_smaller_step_is_named_where_stacks_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    spec = Spec(command=("x",), resources=Resources(nodes=1, tasks_per_node=3))
    ranks_of(tmp_path, {0: ("S", 9), 1: ("S", 8), 2: ("S", 9)})
    assert explained(tmp_path, spec) == ("rank 1 was at step 8, the others had come to 9", 1, "n1")
    ranks_of(tmp_path, {0: ("S", 8), 1: ("S", 8), 2: ("S", 9)})
    assert explained(tmp_path, spec) == ("", None, None)
    stack = '{rank}: Current thread 0x1 (most recent call first):\n{rank}:   File "/t/train.py", line {line} in f\n'
    text = "".join(stack.format(rank=rank, line=line) for rank, line in enumerate((5, 5, 7)))
    (tmp_path / "stacks-n1.txt").write_text(text)
    assert explained(tmp_path, spec) == ("rank 2 stood in f (train.py:7), the others in f (train.py:5)", 2, "n1")
