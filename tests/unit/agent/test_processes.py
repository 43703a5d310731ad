"""Finding a launch's processes and signalling those that listen, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_processes import DEAF, JOB, LISTENER, Ranks

from slurmtrain.agent.processes import Process, find_launch_processes, find_starters, send_stop_signal, signal_number


def test_only_tasks_of_this_job_are_found(ranks: Ranks) -> None:
    mine = ranks.start(ranks.python(DEAF))
    ranks.start(ranks.python(DEAF), SLURM_JOB_ID="1")
    ranks.start(ranks.python(DEAF), SLURM_STEP_ID="")
    ranks.start(ranks.python(DEAF), SLURMTRAIN_LAUNCH_KEY="")
    found = find_launch_processes(JOB)
    assert [p.pid for p in found] == [mine.pid]
    assert (found[0].launch, found[0].step) == ("0.1", "3")


@pytest.mark.parametrize("step", ["-5", "4294967291"])
def test_the_batch_script_is_no_step_though_slurm_gives_it_a_number(ranks: Ranks, step: str) -> None:
    """Slurm 26.05 sets SLURM_STEP_ID=-5 in batch scripts, and so in launch.sh and srun: no stop signal is for them."""
    starter = ranks.start(ranks.python(DEAF), SLURM_STEP_ID=step)
    assert find_launch_processes(JOB) == []
    assert [(p.pid, p.step) for p in find_starters(JOB)] == [(starter.pid, "")]


COMPANION = """
import signal, sys, time
from slurmtrain.agent.companion import take_over_node
time.sleep(float(sys.argv[3]))  # a slow start
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3))
if not take_over_node(sys.argv[2]):
    sys.exit(4)
open(sys.argv[1], "w").close()
time.sleep(60)
"""


def wait_for_file(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert path.exists()


@pytest.mark.parametrize(("slow", "left"), [(0, 3), (5, 4)], ids=["dismissed", "leaves by itself"])
def test_the_youngest_companion_of_a_node_stays(tmp_path: Path, slow: int, left: int) -> None:
    """Of two steps that both live: srun was killed, and the agent did not know the step that it left behind."""
    env = {**os.environ, "SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "PYTHONPATH": str(Path(__file__).parents[3])}
    words = [sys.executable, "-c", COMPANION]
    older = subprocess.Popen([*words, str(tmp_path / "older"), JOB, str(slow), "companion"], env=env)
    if not slow:
        wait_for_file(tmp_path / "older")
    env["SLURM_STEP_ID"] = "2"
    younger = subprocess.Popen([*words, str(tmp_path / "younger"), JOB, "0", "companion"], env=env)
    try:
        assert older.wait(30) in {left, -signal.SIGUSR1}  # not yet listening, it dies of the dismissal
        wait_for_file(tmp_path / "younger")
        assert younger.poll() is None
    finally:
        older.kill()
        younger.kill()
        younger.wait()


def test_a_listener_behind_a_wrapper_hears_it_and_the_wrapper_lives(ranks: Ranks) -> None:
    wrapper = ranks.start(["bash", "-c", f'{sys.executable} -c "$CODE" {ranks.out}; true'], CODE=LISTENER)
    reached = send_stop_signal(find_launch_processes(JOB), signal.SIGUSR2)
    assert len(reached) == 1
    assert reached[0] != wrapper.pid
    assert ranks.heard() == reached
    assert wrapper.poll() is None, "bash has no handler: the signal would have killed it"


def test_the_deaf_are_spared(ranks: Ranks) -> None:
    process = ranks.start(ranks.python(DEAF))
    assert send_stop_signal(find_launch_processes(JOB), signal.SIGUSR2) == []
    time.sleep(0.2)
    assert process.poll() is None


def test_children_that_inherited_the_handler_are_left_to_their_parent(ranks: Ranks) -> None:
    parent = ranks.start(ranks.python(LISTENER, "fork"), ready=2)
    assert len(find_launch_processes(JOB)) == 2
    assert send_stop_signal(find_launch_processes(JOB), signal.SIGUSR2) == [parent.pid]
    assert ranks.heard() == [parent.pid]
    assert send_stop_signal(find_launch_processes(JOB), signal.SIGUSR2, {parent.pid}) == [], "nor at the next look"
    assert ranks.heard() == [parent.pid]


def test_a_recycled_pid_is_never_signalled(ranks: Ranks) -> None:
    process = ranks.start(ranks.python(LISTENER))
    stale = Process(process.pid, 1, 1, 1 << (signal.SIGUSR2 - 1), "0.1", "3")
    assert send_stop_signal([stale], signal.SIGUSR2) == []
    assert ranks.heard() == []


@pytest.mark.parametrize(
    ("name", "number"),
    [("USR2", signal.SIGUSR2), ("sigusr1", signal.SIGUSR1), ("none", None), ("$(x)", None), ("", None)],
)
def test_names_of_signals(name: str, number: int | None) -> None:
    assert signal_number(name) == number
