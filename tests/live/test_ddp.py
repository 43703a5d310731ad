"""Acceptance: a real PyTorch DDP training loses a rank in mid-epoch, and its loss curve goes on as if it had not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from programs.place import place_programs

from slurmtrain import training

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / "docs"))
from blocks import find_file

STEPS, STEPS_PER_EPOCH, CHECKPOINT_EVERY, KILL_AT = 100, 30, 7, 38
TOLERANCE = 1e-6
OURS = {"batch", "extern", "companion", "release"}  # steps that are no launch of the training
pytestmark = [pytest.mark.whole_cluster, pytest.mark.timeout(900), pytest.mark.nodes(2), pytest.mark.native_only]

COMPARE = """
import json, sys, torch
a, b = (torch.load(path, weights_only=True) for path in sys.argv[1:])
assert a["model"].keys() == b["model"].keys()
worst = max(float((a["model"][k] - b["model"][k]).abs().max()) for k in a["model"])
print(json.dumps({"steps": [a["step"], b["step"]], "starts": a["starts"], "worst": worst}))
"""


class Ddp:
    """One submitted DDP training."""

    def __init__(self, cluster: Cluster, folder: Path, python: Path, launcher: str, pace: float = 0) -> None:
        self.cluster, self.workdir = cluster, folder
        folder.mkdir()
        owner = folder.parent.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        program = place_programs(folder) / "ddp.py"
        size = ["-N", "2", "--ntasks-per-node", "2", "--mem", "3G", "-t", "15", "-p", cluster.partition()]
        sets = ["--set", "checkpoint.pattern=step-*.pt", "--set", "retry.delay_s=1"]
        training = [str(python), str(program), "--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY)]
        command = ["slurmtrain", "submit", "--json", "--store", str(folder / "store"), "-J", f"ddp-{launcher}"]
        done = cluster.as_user(
            *command, "--launcher", launcher, *size, *sets, "--", *training, "--pace", str(pace), cwd=folder
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        self.job_id, self.run_dir = int(answer["job_id"]), Path(answer["run_dir"])

    def losses(self) -> list[dict[str, Any]]:
        """What rank 0 wrote down after each step: launch, step, loss."""
        path = self.workdir / "losses.jsonl"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def last_step(self) -> int:
        return self.losses()[-1]["step"] if self.losses() else 0

    def newest_checkpoint(self) -> Path:
        return sorted((self.run_dir / "checkpoints").glob("step-*.pt"))[-1]

    def log(self) -> str:
        return "".join(
            path.read_text("utf-8", "replace") for path in sorted((self.run_dir / "logs").glob("train-*.log"))
        )

    def wait_completed(self) -> None:
        try:
            row = self.cluster.wait_state(self.job_id, "COMPLETED", "FAILED", "CANCELLED", "PENDING", timeout_s=300)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.log()[-4000:]}") from exc
        assert row.state == "COMPLETED", f"{row}\n{self.log()[-4000:]}"


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    """Filled by the first test that needs it: the losses of a run in which nothing happens."""
    return {}


def _reference(known: dict[str, Any], cluster: Cluster, store: Path, python: Path) -> dict[int, float]:
    if not known:
        run = Ddp(cluster, store / "undisturbed", python, "srun")
        cluster.wait_state(run.job_id, "RUNNING", timeout_s=30)
        run.wait_completed()
        known["losses"] = {row["step"]: row["loss"] for row in run.losses()}
        known["checkpoint"] = run.newest_checkpoint().read_bytes()
        assert list(known["losses"]) == list(range(1, STEPS + 1))
        assert known["losses"][STEPS] < known["losses"][1] / 1.5, "the model learns nothing"
    losses: dict[int, float] = known["losses"]
    return losses


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_the_loss_curve_goes_on_after_a_rank_was_killed(
    launcher: str, cluster: Cluster, store: Path, torch_python: Path, undisturbed: dict[str, Any]
) -> None:
    reference = _reference(undisturbed, cluster, store, torch_python)
    run = Ddp(cluster, store / "killed", torch_python, launcher, pace=0.15)
    wait_until(lambda: run.last_step() >= KILL_AT, 240, f"step {KILL_AT}\n{run.log()[-2000:]}")
    ranks = _ranks(run)
    assert sorted(ranks) == [0, 1, 2, 3]
    assert len({process.node for process in ranks.values()}) == 2
    checkpoint = int(run.newest_checkpoint().stem.split("-")[1])
    cluster.signal_process(ranks[3], signal.SIGKILL)
    run.wait_completed()

    rows = run.losses()
    launches = list(dict.fromkeys(row["launch"] for row in rows))
    assert len(launches) == 2, launches
    first, second = ([row for row in rows if row["launch"] == launch] for launch in launches)
    resumed = second[0]["step"] - 1
    assert first[-1]["step"] >= KILL_AT
    assert resumed >= checkpoint >= KILL_AT - CHECKPOINT_EVERY
    assert resumed % STEPS_PER_EPOCH != 0, "it was to be killed in mid-epoch"
    assert [row["step"] for row in second] == list(range(resumed + 1, STEPS + 1))
    apart = {row["step"]: abs(row["loss"] - reference[row["step"]]) for row in rows}
    assert max(apart.values()) <= TOLERANCE, {step: value for step, value in apart.items() if value > TOLERANCE}

    _assert_same_model(run, undisturbed["checkpoint"], torch_python, resumed)
    _assert_slurm_saw_one_job_restarted_in_place(run)


@pytest.mark.parametrize("name", ["train_with_helper.py", "train_ddp.py"])
def test_the_program_of_the_docs_trains_and_resumes(
    cluster: Cluster, store: Path, torch_python: Path, name: str
) -> None:
    _place_helper(store)
    program = store / name
    program.write_text(find_file(name), encoding="utf-8")
    program.chmod(0o644)
    torchrun = [str(torch_python), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(program)]

    def train(**env: str) -> str:
        command = [*torchrun, "--save-every", "20", "--steps", "60"]
        env = {f"SLURMTRAIN_{key}": value for key, value in env.items()} | {"PYTHONPATH": str(store)}
        done = cluster.as_user(*command, cwd=store, env=env, timeout_s=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return str(done.stdout)

    printed = train()
    names = sorted(path.name for path in (store / "checkpoints").iterdir())
    assert names == ["step-000020.pt", "step-000040.pt", "step-000060.pt"]
    again = train(RESUME_FROM=str(store / "checkpoints" / names[1]), DONE_FILE=str(store / "done"))
    expected = [line for line in printed.splitlines() if line.startswith(("step 50/", "step 60/"))]
    assert len(expected) == 2
    assert again.splitlines() == expected, "a resumed training prints the same losses"
    assert (store / "done").exists()
    (store / "stop").touch()
    train(CHECKPOINT_DIR=str(store / "left"), STOP_FILE=str(store / "stop"), DONE_FILE=str(store / "not-done"))
    assert [path.name for path in (store / "left").iterdir()] == ["step-000001.pt"], "it saved, and left"
    assert not (store / "not-done").exists()


def _place_helper(folder: Path) -> None:
    """As if slurmtrain were installed beside PyTorch."""
    package = folder / "slurmtrain"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(training.__file__, package / "training.py")
    for path in (package, *package.iterdir()):
        path.chmod(0o755)


def _ranks(run: Ddp) -> dict[int, Any]:
    """The four training processes, by rank."""
    found = run.cluster.processes(run.job_id)
    mine = [p for p in found if any(word.endswith("ddp.py") for word in p.argv) and "RANK" in p.environ]
    return {int(p.environ["RANK"]): p for p in mine if "torch.distributed.run" not in p.argv}


def _assert_same_model(run: Ddp, reference: bytes, python: Path, resumed: int) -> None:
    """The last checkpoint holds the model of the undisturbed run, and tells that it was resumed."""
    other = run.workdir / "reference.pt"
    other.write_bytes(reference)
    done = run.cluster.as_user(python, "-c", COMPARE, run.newest_checkpoint(), other, timeout_s=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == [STEPS, STEPS]
    assert found["worst"] <= TOLERANCE
    assert found["starts"] == ["0.0@0", f"0.1@{resumed}"]


def _assert_slurm_saw_one_job_restarted_in_place(run: Ddp) -> None:
    cluster = run.cluster
    row = cluster.job(run.job_id)
    assert row is None or row.restarts == 0
    wait_until(lambda: not cluster.processes(run.job_id), 20, "no process of the job is left")
    if not cluster.has_accounting:
        return
    wait_until(lambda: cluster.states_of(run.job_id) == ["COMPLETED"], 20, "one row in accounting, COMPLETED")
    wait_until(lambda: _training_steps(run)[-1:] == ["COMPLETED"], 20, "the second launch's step is COMPLETED")
    assert len(_training_steps(run)) == 2
    assert _training_steps(run)[0] != "COMPLETED"


def _training_steps(run: Ddp) -> list[str]:
    """States of the launches' steps, oldest first."""
    rows = run.cluster.sacct(run.job_id, steps=True, fields=["JobID", "JobName", "State"])
    steps = [row for row in rows if "." in row["JobID"] and row["JobName"] not in OURS]
    return [row["State"].split()[0] for row in sorted(steps, key=lambda row: int(row["JobID"].split(".")[1]))]
