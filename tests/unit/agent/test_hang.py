"""Signs of life of a launch: what counts as one, and how seldom they are looked at."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slurmtrain.agent.hang import HangWatch
from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.core.spec import Hang


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
        self.watch = HangWatch(hang, launch, folder / "checkpoints")

    def after(self, seconds: float) -> float | None:
        self.now += seconds
        return self.watch.silent_for()


def test_output_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path, monkeypatch, Hang(timeout_s=100, startup_s=0))
    assert watched.after(0) is None
    assert watched.after(90) is None
    watched.log.write_text("begins\ngoes on\n")
    assert watched.after(50) is None
    assert watched.after(99) is None
    assert watched.after(10) == 109


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
