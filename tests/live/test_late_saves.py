"""Saves at the end of the time limit, in a preemption's grace, and when a node drains, on a real Slurm.

One that lasts longer than the usual wait is not cut while there is time, and stays whole; one that comes too late is
cut, is not taken for a checkpoint, and what is lost is told. Both are held against the files' times and sacct's.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from own_starts import drain
from runs import PYTHON, LiveRun, submit

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs_accounting]

GRACE_S = 45  # of which the last 15 are kept for ending the training, all but 5 where it saves
SAVES_S = (35, 300)  # in the first attempt and in the second
DRAIN_SAVES_S = (GRACE_S + 12, 300)  # nobody waits for the node so urgently: one that saves gets stop.grace_s more
LINGERS_S = 3
PROGRAM = """
import io, json, os, signal, sys, time, zipfile
from pathlib import Path

attempt, folder = int(os.environ["SLURMTRAIN_ATTEMPT"]), Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"])
resume, step, asked = os.environ["SLURMTRAIN_RESUME_FROM"], 0, []
if resume:
    with zipfile.ZipFile(resume) as archive:
        step = json.loads(archive.read("state.json"))["step"]


def note(**facts):
    with open("notes.jsonl", "a") as stream:
        stream.write(json.dumps({"attempt": attempt, "at": time.time(), **facts}) + "\\n")


def save(seconds=0):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("w.npy", os.urandom(400_000))
        archive.writestr("state.json", json.dumps({"step": step}))
    data, pieces = packed.getvalue(), 2 * seconds or 1
    with open(folder / f"step-{step:04d}.npz", "wb") as stream:
        for piece in range(pieces):
            stream.write(data[len(data) * piece // pieces : len(data) * (piece + 1) // pieces])
            stream.flush()
            time.sleep(0.5 if seconds else 0)


for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(number))
note(starts=step)
first = step
last = step + 15 if attempt == 2 else 10**6
while step < last:
    step += 1
    time.sleep(0.2)
    print(f"step {step}/{last} loss {1 / step:.3f}", flush=True)
    if asked or os.path.exists(os.environ["SLURMTRAIN_STOP_FILE"]):
        note(asked=step)
        save(int(sys.argv[1 + attempt]))
        note(saved=step)
        time.sleep(int(sys.argv[-1]))
        sys.exit(0)
    if step % 10 == 0 and step <= first + 10:  # no later: a save in the second before the request answers it, too
        save()
"""


@contextmanager
def grace(cluster: Cluster, seconds: int) -> Iterator[None]:
    """The grace time of the lane's partition for preempted jobs."""
    change = ("scontrol", "update", f"PartitionName={cluster.partition('graced')}")
    cluster.slurm(*change, f"GraceTime={seconds}")
    try:
        yield
    finally:
        cluster.slurm(*change, "GraceTime=20")


def notes(run: LiveRun, attempt: int) -> dict[str, Any]:
    """What the training wrote down in one attempt: key -> value, and key_at -> when."""
    path, found = run.workdir / "notes.jsonl", {}
    for row in map(json.loads, path.read_text().splitlines() if path.exists() else []):
        if row.pop("attempt") == attempt:
            at = row.pop("at")
            found |= {**row, **{f"{key}_at": at for key in row}}
    return found


def wait_trained(run: LiveRun, attempt: int) -> None:
    """Until it is well behind a save."""
    wait_until(lambda: "starts" in notes(run, attempt), 90, f"attempt {attempt} starts")
    due = notes(run, attempt)["starts"] // 10 * 10 + 10
    wait_until(lambda: f"step {due + 8}/" in run.log(), 60, f"it is well behind the save of step {due}")


def preempt(cluster: Cluster, run: LiveRun) -> None:
    """A job of higher priority wants its node."""
    (node,) = cluster.job(run.job_id).nodes  # type: ignore[union-attr]
    where = ["-p", cluster.partition("urgent"), "-w", node, "-N1", "--exclusive", "-t", "1"]
    cluster.sbatch(*where, script="#!/bin/bash\nsleep 1\n")


def seconds_in(words: str) -> float:
    """``1 min 12 s`` -> 72."""
    units = {"s": 1, "min": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+) (s|min|h)\b", words))


@pytest.mark.nodes(3)
@pytest.mark.parametrize("ending", ["time_limit", "preempted", "drain"])
def test_a_save_is_cut_only_when_there_is_no_time_left(cluster: Cluster, store: Path, ending: str) -> None:
    program = store / "late.py"
    program.write_text(PROGRAM)
    program.chmod(0o644)
    saves_s = DRAIN_SAVES_S if ending == "drain" else SAVES_S
    longest_idle_s = GRACE_S if ending == "drain" else GRACE_S * 2 / 3  # that one gets which writes nothing
    command = [PYTHON, str(program), *map(str, saves_s), str(LINGERS_S)]
    with grace(cluster, GRACE_S):
        run = submit(
            cluster, store, command, nodes=1, retry={"requeues": 0}, checkpoint={"pattern": "step-*.npz"},
            partition="graced" if ending == "preempted" else "batch", stop={"warning_s": GRACE_S, "node_look_s": 5},
            time_limit="1" if ending == "time_limit" else "20", scene={"enabled": False},
        )  # fmt: skip
        for attempt in (0, 1) if ending != "time_limit" else ():
            wait_trained(run, attempt)
            preempt(cluster, run) if ending == "preempted" else drain(cluster, run)
            wait_until(lambda n=attempt: len(run.decisions()) > n, 200, "it has left")  # type: ignore[misc]
        run.wait_state("Completed", timeout_s=300)
    run.wait_slurm("COMPLETED")
    log, states = run.log(), run.ended_states()
    assert states[-1] == "COMPLETED"
    assert len(states) == 3, states
    ends = [datetime.fromisoformat(row["End"]).timestamp() for row in cluster.sacct(run.job_id)]
    first, second, third = (notes(run, attempt) for attempt in range(3))

    saved = run.checkpoints / f"step-{first['asked']:04d}.npz"
    assert first["saved_at"] - first["asked_at"] > longest_idle_s + 2, "longer than a training that does not save gets"
    with zipfile.ZipFile(saved) as archive:
        assert archive.testzip() is None
    assert second["starts"] == first["asked"]
    told = re.search(rf"saved {saved.name}, (.+) before the end", log)
    assert told is not None, log[-4000:]
    assert abs(ends[0] - saved.stat().st_mtime - seconds_in(told[1])) < 8
    assert seconds_in(told[1]) >= LINGERS_S - 1

    cut = f"step-{second['asked']:04d}.npz"
    assert "saved" not in second
    whole = run.checkpoints / f"step-{third['starts']:04d}.npz"
    assert second["starts"] <= third["starts"] < second["asked"]
    with zipfile.ZipFile(whole) as archive:
        assert archive.testzip() is None
    told = re.search(rf"not saved: {cut} has no end.*; ([^;]+) of work since {whole.name} are lost", log)
    assert told is not None, log[-4000:]
    assert abs(ends[1] - whole.stat().st_mtime - seconds_in(told[1])) < 8
    assert f"saved {cut}" not in log
    assert ends[1] - second["asked_at"] > longest_idle_s + 2, "it had all the time that there was"
    aside = [path.name.rpartition("-")[0] for path in run.path.glob("checkpoints.set-aside/*")]
    assert aside == [cut]
    assert [decision["cause"] for decision in run.decisions()] == [ending, ending, "no_failure"]
