"""Hangs on a real Slurm: one rank stands still, the others wait for it. It is named, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from runs import PYTHON, LiveRun, submit

from slurmtrain import training

pytestmark = pytest.mark.timeout(600)

PROGRAM = """
import json, os, signal, sys, threading, time
from pathlib import Path
from slurmtrain_training import heartbeat

kind, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
first = os.environ["SLURMTRAIN_LAUNCH"] == "0"
folder = Path(f"steps-{os.environ['SLURMTRAIN_ATTEMPT']}-{os.environ['SLURMTRAIN_LAUNCH']}")
folder.mkdir(exist_ok=True)


def stand_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_others(step):
    while len(list(folder.glob(f"{step}-*"))) < size:
        time.sleep(0.1)


def stand():
    while True:
        if kind == "chatters":
            print("no sample yet, asking again", flush=True)
        time.sleep(0.5)


def train(step):
    if kind in ("alike", "chatters"):
        heartbeat(step=step)
        if first and step == (3 if rank == 2 else 4):
            (folder / f"{step}-{rank}").touch()
            time.sleep(1.2)
            heartbeat(step=step)
            stand()
    if step == 4 and rank == 2 and first:
        if kind == "lock":
            stand_in_a_lock()
        if kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "loop":
            while True:
                pass
        if kind == "pause":
            time.sleep(26)
    (folder / f"{step}-{rank}").touch()
    wait_for_others(step)


if rank == 0 and kind == "pause":
    Path(os.environ["SLURMTRAIN_HEARTBEAT"]).write_text(f'3 {json.dumps({"pause_until": time.time() + 60})}')
for step in range(8):
    train(step)
    print(f"step {step}/8 loss {1 / (step + 1):.2f}", flush=True)
    time.sleep(0.2)
"""


def hang(cluster: Cluster, store: Path, kind: str) -> LiveRun:
    program = store / "hangs.py"
    program.write_text(PROGRAM)
    program.chmod(0o644)
    helper = store / "slurmtrain_training.py"
    helper.write_text(Path(training.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    helper.chmod(0o644)
    which = "timeout_s" if kind != "chatters" else "step_timeout_s"
    limits = {which: 8, "startup_s": 15}  # a busy machine may take ten seconds to start the ranks
    return submit(cluster, store, [PYTHON, str(program), kind], nodes=2, ranks=2, hang=limits, retry={"delay_s": 1})


@pytest.mark.nodes(2)
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        pytest.param("lock", "rank 2 stood in stand_in_a_lock (hangs.py:", marks=pytest.mark.docker_too),
        ("loop", "rank 2 stood in train (hangs.py:"),
        ("stopped", "rank 2 on {node} is stopped by a signal"),
        ("alike", "rank 2 was at step 3, the others had come to 4"),
        ("chatters", "No step for"),
    ],
)
def test_a_rank_that_stands_still_is_named_and_the_run_goes_on(
    cluster: Cluster, store: Path, kind: str, said: str
) -> None:
    run = hang(cluster, store, kind)
    run.wait_state("Completed", timeout_s=180)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"], "in place: the allocation was never given back"
    assert ("has made no new step" if kind == "chatters" else "has given no sign of life") in run.log()
    (found,) = run.diagnoses()
    assert found["cause"] == "hang_no_progress"
    assert found["rank"] == 2
    assert said.format(node=found["node"]) in found["sentence"]
    assert sorted(path.name for path in run.workdir.glob("steps-*")) == ["steps-0-0", "steps-0-1"]


@pytest.mark.nodes(2)
def test_an_announced_pause_is_no_hang(cluster: Cluster, store: Path) -> None:
    run = hang(cluster, store, "pause")
    run.wait_state("Completed", timeout_s=180)
    assert sorted(path.name for path in run.workdir.glob("steps-*")) == ["steps-0-0"]
    assert run.diagnoses() == []
