"""A store that fills up: the training goes on, its end is right, and the record is made whole once there is room."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from runs import slurmtrain, submit

pytestmark = pytest.mark.native_only  # the file system is mounted on the one machine that all nodes are

WORK = """
import os, time
from pathlib import Path
seen = Path(os.environ["PROOF"])
with seen.open("a") as stream:
    stream.write("begins\\n")
for number in range(20):
    print("x" * 4000, flush=True)
    time.sleep(0.5)
with seen.open("a") as stream:
    stream.write("ends\\n")
raise SystemExit({code})
"""


@pytest.fixture
def small(store: Path) -> Iterator[Path]:
    """A store of 4 MiB."""
    path = store / "small"
    path.mkdir()
    owner = store.stat()
    options = f"size=4m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, timeout=30)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


def _work(store: Path, code: int = 0) -> tuple[list[str], Path]:
    program, proof = store / "work.py", store / "proof"
    program.write_text(WORK.format(code=code))
    program.chmod(0o644)
    proof.touch()
    os.chown(proof, store.stat().st_uid, store.stat().st_gid)
    return ["/usr/bin/python3", str(program)], proof


def _fill(small: Path) -> Path:
    filler = small / "filler"
    with filler.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(b"\\0" * 4096)
    return filler


@pytest.mark.parametrize("moment", ["before the start", "in the launch"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_full_store_costs_no_training(cluster: Cluster, store: Path, small: Path, moment: str, code: int) -> None:
    command, proof = _work(store, code)
    options = ("-N1", "--exclusive", "-w", cluster.nodes[0], "-o", "/dev/null")
    blocker = cluster.sbatch(*options, script="#!/bin/sh\nsleep 600\n")
    cluster.wait_state(blocker, "RUNNING", timeout_s=60)
    run = submit(
        cluster, small, command, nodes=1, resources={"nodelist": cluster.nodes[0]},
        retry={"in_place": 0, "requeues": 0}, environment={"variables": {"PROOF": str(proof)}},
    )  # fmt: skip
    filler = _fill(small) if moment == "before the start" else None
    cluster.as_user("scancel", str(blocker))
    wait_until(lambda: "begins" in proof.read_text(), 90, "the training begins")
    if filler is None:
        filler = _fill(small)
    said = slurmtrain(cluster, small, "status", run.run_id)
    assert f"the store {small} is full" in said.stderr
    run.wait_slurm("COMPLETED", "FAILED", "", timeout_s=120)
    assert proof.read_text() == "begins\nends\n", "it ran once, to its end"
    filler.unlink()
    run.watch_once()
    row = run.wait_state("Completed" if code == 0 else "Failed", "Held", timeout_s=60)
    assert row["ended_at"] or row["state"] == "Held"
    explained = json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout)
    assert explained["damage"] == [] or moment == "before the start", explained["damage"]


AGAIN = """
import os, time
from pathlib import Path
seen, launch = Path(os.environ["PROOF"]), os.environ["SLURMTRAIN_LAUNCH"]
for number in range(100):
    print(f"launch {launch} says {number:03d}", "x" * 400, flush=True)
    if number == 10:
        with seen.open("a") as stream:
            stream.write(f"begins {launch}\\n")
    if launch != "0" and number == 20:
        break
    time.sleep(0.2)
raise SystemExit(3 if launch == "0" else 0)
"""


def test_a_launch_that_lost_its_log_is_told_and_the_next_one_logs_again(
    cluster: Cluster, store: Path, small: Path
) -> None:
    """There is room again before the first launch ends; it is silent for longer than a hang may last, and no hang."""
    program, proof = store / "again.py", store / "proof"
    program.write_text(AGAIN)
    program.chmod(0o644)
    proof.touch()
    os.chown(proof, store.stat().st_uid, store.stat().st_gid)
    run = submit(
        cluster, small, ["/usr/bin/python3", str(program)], nodes=1, retry={"in_place": 1, "requeues": 0, "delay_s": 0},
        hang={"timeout_s": 11, "startup_s": 0}, environment={"variables": {"PROOF": str(proof)}},
    )  # fmt: skip
    wait_until(lambda: "begins 0" in proof.read_text(), 90, "the training speaks")
    filler = _fill(small)
    time.sleep(12)  # longer than the agent's look at the log
    filler.unlink()
    run.wait_state("Completed", timeout_s=120)
    log = run.log()
    assert "launch 0 says 099" not in log, "srun writes again by itself: say so in docs/retention.md"
    assert "launch 1 says 020" in log
    told = run.slurmtrain("explain", run.run_id, "--timeline").stdout
    assert "file system of the log is full" in " ".join(told.split())
    assert [row["cause"] for row in run.diagnoses()] != ["hang_no_progress"]
