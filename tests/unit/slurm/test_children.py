"""Real child processes: what they print and are told is bounded, and nothing of them is left."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from slurmtrain.hosts.children import Ended, gather, start

MOST = 4 << 20


def run(*argv: str, order: bytes = b"", seconds: float = 30.0) -> Ended:
    child = start(argv, listens=True)
    return dict(gather({1: child}, time.monotonic() + seconds, MOST, order))[1]


def test_it_is_told_more_than_a_pipe_holds_and_answers_as_much() -> None:
    order = bytes(range(256)) * 10_000
    assert run("cat", order=order) == Ended(order, 0)
    assert run("head", "-c", "3", order=order) == Ended(order[:3], 0)
    assert run("sh", "-c", "exec 0<&-; echo deaf", order=order) == Ended(b"deaf\n", 0)


@pytest.mark.parametrize(("words", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("exec 1>&-; sleep 0.3; exit 3", 3)])
def test_how_it_ended(words: str, code: int) -> None:
    assert run("sh", "-c", words) == Ended(b"", code)


def test_one_that_prints_too_much_is_ended() -> None:
    began = time.monotonic()
    found = run("yes", seconds=600)
    assert (found.exit_code, found.flooded) == (None, True)
    assert MOST < len(found.output) < MOST + (1 << 20)
    assert time.monotonic() - began < 60


def test_who_left_its_group_holds_nobody_up_with_the_pipe(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    found = run("sh", "-c", f"setsid sleep 600 & echo $! > {pid}; echo done", seconds=600)
    subprocess.run(["kill", pid.read_text().strip()], check=False)
    assert found == Ended(b"done\n", 0)


def test_some_end_and_others_take_too_long() -> None:
    children = {words: start(["sh", "-c", words]) for words in ("echo 1", "sleep 600", "echo 2; sleep 600")}
    found = dict(gather(children, time.monotonic() + 2, MOST))
    assert found == {
        "echo 1": Ended(b"1\n", 0),
        "sleep 600": Ended(b"", None),
        "echo 2; sleep 600": Ended(b"2\n", None),
    }
    assert all(child.wait(20) is not None for child in children.values())


def test_who_is_not_waited_for_any_more_is_ended() -> None:
    children = {n: start(["sleep", "600" if n else "0"]) for n in range(3)}
    for _ in gather(children, time.monotonic() + 60, MOST):
        break
    assert all(child.wait(20) is not None for child in children.values())
