"""Broken checkpoints on a real Slurm: each launch resumes from the newest one that is whole, and says why.

The training writes archives of NumPy's kind under their final names, without care, as many do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster
from runs import PYTHON, submit

pytestmark = pytest.mark.timeout(600)

SAVER = """
import io, json, os, signal, sys, time, zipfile
from pathlib import Path

damage, folder = sys.argv[1], Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"])
resume = os.environ.get("SLURMTRAIN_RESUME_FROM", "")
first = os.environ["SLURMTRAIN_LAUNCH"] == "0"
step = 0
if resume:
    with zipfile.ZipFile(resume) as archive:
        step = json.loads(archive.read("state.json"))["step"]
with open("starts.jsonl", "a") as stream:
    stream.write(json.dumps({"step": step, "resume": os.path.basename(resume)}) + "\\n")


def pack(step):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("w.npy", os.urandom(200_000))
        archive.writestr("state.json", json.dumps({"step": step}))
    return bytearray(packed.getvalue())


while step < 60:
    step += 1
    time.sleep(0.02)
    if step % 10 == 0:
        print(f"step {step}/60 loss {1 / step:.3f}", flush=True)
        data = pack(step)
        broken = first and step == 40
        if broken and damage == "flip":
            data[100_000] ^= 4
        with open(folder / f"step-{step:03d}.npz", "wb") as stream:
            if broken and damage == "kill":
                stream.write(data[:120_000])
                stream.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            stream.write(data)
        if broken and damage == "truncate":
            os.truncate(folder / f"step-{step:03d}.npz", 150_000)
        if broken and damage == "latest two":
            for path in sorted(folder.glob("*.npz"))[-2:]:
                os.truncate(path, 0)
        if broken:
            os.kill(os.getpid(), signal.SIGSEGV)
"""


@pytest.mark.docker_too
@pytest.mark.parametrize(("damage", "resumed"), [("kill", 30), ("truncate", 30), ("flip", 30), ("latest two", 20)])
def test_the_newest_whole_checkpoint_is_taken(cluster: Cluster, store: Path, damage: str, resumed: int) -> None:
    program = store / "saver.py"
    program.write_text(SAVER)
    program.chmod(0o644)
    checkpoint = {"pattern": "step-*.npz"}
    run = submit(cluster, store, [PYTHON, str(program), damage], nodes=1, checkpoint=checkpoint, retry={"delay_s": 1})
    run.wait_state("Completed")
    run.wait_slurm("COMPLETED")
    starts = (run.workdir / "starts.jsonl").read_text().splitlines()
    assert starts == ['{"step": 0, "resume": ""}', f'{{"step": {resumed}, "resume": "step-{resumed:03d}.npz"}}']
    aside = sorted(path.name.rpartition("-")[0] for path in run.path.glob("checkpoints.set-aside/*"))
    assert aside == [f"step-{step:03d}.npz" for step in range(resumed + 10, 50, 10)], "kept, under another name"
    assert "set aside as checkpoints.set-aside/step-040.npz" in run.log()
    listed = run.slurmtrain("checkpoints", run.run_id).stdout
    assert "\n→ step-060.npz" in listed
    told = json.loads(run.slurmtrain("checkpoints", run.run_id, "--json").stdout)
    why = {row["name"]: row["why"] for row in told["set_aside"]}
    assert sorted(why) == aside
    assert all(text[:60] in listed and text.startswith(name) for name, text in why.items()), why
    assert {row["health"] for row in told["checkpoints"]} == {"valid"}


ROTATES = """
import json, os, signal, sys, time, zipfile
from pathlib import Path

folder, launch = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"]), int(os.environ["SLURMTRAIN_LAUNCH"])
resume, step = os.environ["SLURMTRAIN_RESUME_FROM"], 0
if resume:
    with zipfile.ZipFile(resume) as archive:
        step = json.loads(archive.read("state.json"))["step"]
kept = sorted(path.name for path in (folder.parent / "kept-checkpoint").glob("*"))
there = sorted(path.name for path in folder.glob("*.npz"))
with open("starts.jsonl", "a") as stream:
    stream.write(json.dumps({"step": step, "there": there, "kept": kept}) + "\\n")

DIES_AT = {0: 15, 1: 25, 2: 35}
while step < 60:
    step += 1
    time.sleep(0.02)
    if step % 10 == 0:
        print(f"step {step}/60 loss {1 / step:.3f}", flush=True)
        with zipfile.ZipFile(folder / ".next.tmp", "w") as archive:
            archive.writestr("w.npy", os.urandom(100_000))
            archive.writestr("state.json", json.dumps({"step": step}))
        if launch == 1:
            os.truncate(folder / ".next.tmp", 70_000)
        os.rename(folder / ".next.tmp", folder / f"step-{step:03d}.npz")
        for old in folder.glob("step-*.npz"):
            if old.name != f"step-{step:03d}.npz":
                old.unlink()
    if step == DIES_AT.get(launch):
        os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_what_the_training_rotates_away_is_there_again_when_only_a_broken_one_is_left(
    cluster: Cluster, store: Path
) -> None:
    """It keeps its newest checkpoint only, and in the second launch that is cut. At the end the pin is let go."""
    program = store / "rotates.py"
    program.write_text(ROTATES)
    program.chmod(0o644)
    run = submit(
        cluster, store, [PYTHON, str(program)], nodes=1, checkpoint={"pattern": "step-*.npz"}, retry={"delay_s": 1}
    )
    run.wait_state("Completed", "Held", "Failed")
    log = run.log()
    starts = [json.loads(line) for line in (run.workdir / "starts.jsonl").read_text().splitlines()]
    assert starts == [
        {"step": 0, "there": [], "kept": []},
        {"step": 10, "there": ["step-010.npz"], "kept": ["step-010.npz"]},
        {"step": 10, "there": ["step-010.npz"], "kept": ["step-010.npz"]},
        {"step": 30, "there": ["step-030.npz"], "kept": ["step-030.npz"]},
    ], log
    assert "step-010.npz, which had been kept from deletion, is there again" in log
    assert [path.name.rpartition("-")[0] for path in run.path.glob("checkpoints.set-aside/*")] == ["step-020.npz"]
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"]
    assert not (run.path / "kept-checkpoint").exists(), "let go at the end"
    (last,) = run.checkpoints.glob("*.npz")
    assert (last.name, last.stat().st_nlink) == ("step-060.npz", 1)


DIVERGES = """
import json, os, sys, time, zipfile
from pathlib import Path

folder, resume, step = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"]), os.environ["SLURMTRAIN_RESUME_FROM"], 0
if resume:
    with zipfile.ZipFile(resume) as archive:
        step = json.loads(archive.read("state.json"))["step"]
with open("starts.jsonl", "a") as stream:
    stream.write(json.dumps(step) + "\\n")
cured = step == 10  # what lies beyond is lost from the start
while step < 60:
    step += 1
    time.sleep(0.02)
    loss = 1 / step if cured or step < 25 else float("nan")
    print(f"step {step}/60 loss {loss:.3f}", flush=True)
    if step % 10 == 0:
        with zipfile.ZipFile(folder / f"step-{step:03d}.npz", "w") as archive:
            archive.writestr("w.npy", os.urandom(1000))
            archive.writestr("state.json", json.dumps({"step": step}))
    if step == 35 and not cured:
        raise FloatingPointError("loss is nan")
"""


def test_a_loss_that_is_no_number_is_rolled_back_further_each_time(cluster: Cluster, store: Path) -> None:
    """The checkpoint of step 30 was written with bad numbers, and from the one of step 20 it comes to them again."""
    program = store / "diverges.py"
    program.write_text(DIVERGES)
    program.chmod(0o644)
    checkpoint, retry = {"pattern": "step-*.npz"}, {"delay_s": 0}
    run = submit(cluster, store, [PYTHON, str(program)], nodes=1, checkpoint=checkpoint, retry=retry)
    run.wait_state("Completed")
    assert run.ended_states()[-1] == "COMPLETED"
    assert [row["cause"] for row in run.diagnoses()] == ["nan_loss", "nan_loss"]
    assert [int(line) for line in (run.workdir / "starts.jsonl").read_text().split()] == [0, 20, 10]
    aside = sorted(path.name.rpartition("-")[0] for path in run.path.glob("checkpoints.set-aside/*"))
    assert aside == ["step-020.npz", "step-030.npz", "step-030.npz"]
    assert "step 60/60 loss 0.017" in run.log()
