"""Arrays on a real Slurm: each task is a run of its own, with its own directory, ladder and end.

Asserted is what Slurm's accounting and the trainings' own records and checkpoints say, task by task.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole, read_records
from runs import LiveRun, slurmtrain, trainer

pytestmark = pytest.mark.timeout(600)

LONG = ["--steps", "3000", "--pace", "0.1", "--checkpoint-every", "10"]
# Each task trains in a directory of its own, with the arguments that lie there.
WRAP = (
    'cd "task-$SLURM_ARRAY_TASK_ID" && env | grep ^SLURM_ARRAY_ >array-"$SLURM_ARRAY_JOB_ID" '
    '&& exec "$@" $(cat arguments)'
)


@dataclass
class LiveArray:
    """One submitted array."""

    cluster: Cluster
    group_id: str
    job_id: int
    runs: list[LiveRun]
    store: Path

    def cli(self, *words: str, check: bool = True) -> Any:
        return slurmtrain(self.cluster, self.store, *words, check=check)

    def states(self) -> dict[int, str]:
        """Task → state, from ``slurmtrain status --json``, which lists every run."""
        rows = json.loads(self.cli("status", self.group_id, "--json").stdout)
        return {int(row["run_id"].rpartition("-")[2]): row["state"] for row in rows}

    def wait_states(self, wanted: dict[int, str], timeout_s: float = 150) -> None:
        def reached() -> bool:
            found = self.states()
            return all(found[task] == state for task, state in wanted.items())

        try:
            wait_until(reached, timeout_s, f"{self.group_id}: {wanted}", 1.0)
        except AssertionError as exc:
            logs = "\n".join(f"--- {run.run_id}\n{run.log()[-2000:]}" for run in self.runs)
            raise AssertionError(f"{exc} {self.states()}\n{logs}") from exc

    def batch_shell(self, task: int) -> int:
        """The pid of the batch script of one task."""
        wanted = {"SLURM_ARRAY_JOB_ID": str(self.job_id), "SLURM_ARRAY_TASK_ID": str(task)}
        for process in self.cluster.processes():
            of_task = wanted.items() <= process.environ.items() and not process.in_step
            if of_task and "slurm_script" in " ".join(process.argv):
                return process.pid
        raise AssertionError(f"no batch script of {self.job_id}_{task} runs")


def in_queue(cluster: Cluster) -> str:
    """What the researcher has in this lane's queue: other lanes have jobs of the same user."""
    return str(cluster.as_user("squeue", "--me", "-h", "-p", cluster.partition()).stdout)


def submit_array(
    cluster: Cluster, store: Path, array: str, arguments: dict[int, list[str]], *options: str, **retry: Any
) -> LiveArray:
    """Submit an array whose tasks train with these arguments, as the researcher."""
    work = store / "work"
    owner = store.stat()
    for folder in (work, *(work / f"task-{task}" for task in arguments)):
        folder.mkdir()
        os.chown(folder, owner.st_uid, owner.st_gid)
    for task, words in arguments.items():
        (work / f"task-{task}" / "arguments").write_text(" ".join(words))
    asked = {"time_limit": "10", "partition": cluster.partition("batch")}
    command = ["bash", "-c", WRAP, "task", *trainer(store)]
    body = {"command": command, "name": "sweep", "workdir": str(work), "resources": asked, "array": array}
    path = store / "sweep.yaml"
    path.write_text(json.dumps({**body, "retry": {"delay_s": 1, **retry}}))
    os.chown(path, owner.st_uid, owner.st_gid)
    answer = json.loads(slurmtrain(cluster, store, "submit", str(path), *options, "--json").stdout)
    runs = [
        LiveRun(cluster, row["run_id"], row["job_id"], Path(row["run_dir"]), work / f"task-{row['task']}")
        for row in answer["runs"]
    ]
    return LiveArray(cluster, answer["run_id"], int(answer["job_id"]), runs, store)


@pytest.mark.docker_too
def test_each_task_has_a_ladder_of_its_own(cluster: Cluster, store: Path) -> None:
    """A passing fault, one that needs a requeue, one that nothing cures: none of them touches another task."""
    fault = ["--steps", "30", "--fail-at", "5", "--fail", "signal:SEGV", "--fail-launches"]
    arguments = {
        0: ["--steps", "20"],
        1: [*fault, "1"],
        2: [*fault, "2"],
        3: ["--steps", "20", "--fail-at", "3", "--fail-launches", "-1", "--fail", "import_error"],
    }
    array = submit_array(cluster, store, "0-3%2", arguments, in_place=1)
    array.wait_states({0: "Completed", 1: "Completed", 2: "Completed", 3: "Failed"})
    ended = [run.ended_states() for run in array.runs]
    assert ended == [["COMPLETED"], ["COMPLETED"], ["REQUEUED", "COMPLETED"], ["FAILED"]]
    assert [run.starts() for run in array.runs] == [["0.0"], ["0.0", "0.1"], ["0.0", "0.1", "1.0"], ["0.0"]]
    for run, steps in zip(array.runs[:3], (20, 30, 30), strict=True):
        assert_whole(run.checkpoints, steps)
    told = (array.runs[2].workdir / f"array-{array.job_id}").read_text().split()
    assert {"SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=4", "SLURM_ARRAY_TASK_MAX=3"} <= set(told)
    table = array.cli("status").stdout
    assert f"{array.group_id}-[0-2]  Completed x3" in table
    assert f"{array.group_id}-3 " in table
    assert array.cli("wait", array.group_id, check=False).returncode == 1, "one of them failed"
    assert "first failing" in " ".join(array.cli("explain", f"{array.group_id}-1").stdout.split())
    refused = array.cli("explain", array.group_id, check=False)
    assert refused.returncode == 2
    assert f"{array.group_id}-0" in refused.stderr


def test_cancelling_and_killing_one_task_leaves_the_others_alone(cluster: Cluster, store: Path) -> None:
    array = submit_array(cluster, store, "0-3%3", dict.fromkeys(range(4), LONG))
    job = array.job_id
    for run in array.runs[:3]:
        run.wait_step(10)
    assert cluster.as_user("scancel", f"{job}_0").returncode == 0
    array.runs[0].wait_slurm("CANCELLED")
    array.runs[3].wait_started()
    os.kill(array.batch_shell(1), signal.SIGKILL)
    array.runs[1].wait_slurm("FAILED")
    said = array.runs[1].watch_once()
    assert said.count("requeued job") == 1, said
    assert f"requeued job {job}_1" in said, said
    wait_until(lambda: len(array.runs[1].starts()) == 2, 90, "task 1 trains again")
    array.wait_states({0: "Stopped", 1: "Running", 2: "Running", 3: "Running"}, 60)
    assert [len(run.starts()) for run in array.runs] == [1, 2, 1, 1]
    assert array.runs[1].records("start")[1]["step"] >= 10
    assert array.runs[0].ended_states() == ["CANCELLED"]
    wait_until(
        lambda: [len(cluster.states_of(f"{job}_{task}")) for task in range(4)] == [1, 2, 1, 1],
        60,
        "accounting has one row for each execution",
    )
    array.cli("stop", "--now", f"{array.group_id}-1", f"{array.group_id}-2", f"{job}_3")
    array.wait_states(dict.fromkeys(range(4), "Stopped"), 60)


def test_cancelling_the_whole_array_ends_the_tasks_that_wait_too(cluster: Cluster, store: Path) -> None:
    array = submit_array(cluster, store, "0-3%1", dict.fromkeys(range(4), LONG))
    array.runs[0].wait_started()
    assert cluster.as_user("scancel", str(array.job_id)).returncode == 0
    wait_until(lambda: not in_queue(cluster), 60, "Slurm has ended all of it")
    array.runs[0].watch_once()
    array.wait_states(dict.fromkeys(range(4), "Stopped"), 60)
    array.runs[0].watch_once()
    assert not in_queue(cluster), "nothing was revived"
    assert array.runs[0].ended_states() == ["CANCELLED"]
    assert [len(run.starts()) for run in array.runs] == [1, 0, 0, 0]


def test_a_preempted_task_goes_on_by_itself(cluster: Cluster, store: Path) -> None:
    array = submit_array(cluster, store, "0-1", dict.fromkeys(range(2), LONG), "--exclusive")
    for run in array.runs:
        run.wait_step(10)
    (node,) = cluster.job(array.runs[0].job_id).nodes  # type: ignore[union-attr]
    urgent = cluster.sbatch(
        "-p", cluster.partition("urgent"), "-w", node, "--exclusive", "-o", "/dev/null", script="#!/bin/bash\nsleep 3\n"
    )
    wait_until(lambda: len(array.runs[0].starts()) == 2, 120, "the preempted task trains again")
    cluster.wait_gone(urgent)
    wait_until(lambda: "PREEMPTED" in cluster.states_of(array.runs[0].job_id), 60, "the first end in accounting")
    assert array.runs[0].records("start")[1]["step"] >= 10
    assert array.runs[1].starts() == ["0.0"]
    array.cli("stop", array.group_id)
    array.wait_states({0: "Stopped", 1: "Stopped"}, 120)
    assert all(run.records("left") for run in array.runs), "both saved"


def test_stopping_an_array_lets_none_begin_that_waits(cluster: Cluster, store: Path) -> None:
    array = submit_array(cluster, store, "0-3%1", dict.fromkeys(range(4), LONG))
    array.runs[0].wait_step(10)
    array.cli("stop", "sweep")
    array.wait_states(dict.fromkeys(range(4), "Stopped"), 120)
    assert [len(run.starts()) for run in array.runs] == [1, 0, 0, 0]
    assert array.runs[0].records("left"), "the one that ran has saved"
    wait_until(lambda: not in_queue(cluster), 60, "nothing of it is left in the queue")


def test_a_task_that_is_submitted_again_is_the_same_task(cluster: Cluster, store: Path) -> None:
    """Held, then released: a new job of this run alone, to which Slurm and we tell what the first one was told."""
    steps = ["--steps", "20"]
    arguments = {0: steps, 2: [*steps, "--fail-at", "5", "--fail", "signal:SEGV", "--fail-launches", "2"], 4: steps}
    array = submit_array(cluster, store, "0-4:2", arguments, in_place=1, requeues=0)
    array.wait_states({0: "Completed", 4: "Completed", 2: "Held"})
    array.cli("release", f"{array.group_id}-2")
    array.wait_states({2: "Completed"})
    run = array.runs[1]
    again = run.status()["job_id"]
    assert again.endswith("_2")
    assert again != run.job_id
    (new,) = [path for path in run.workdir.glob("array-*") if path.name != f"array-{array.job_id}"]
    told = set(new.read_text().split())
    assert {"SLURM_ARRAY_TASK_ID=2", "SLURM_ARRAY_TASK_COUNT=3", "SLURM_ARRAY_TASK_MIN=0"} <= told
    assert "SLURM_ARRAY_TASK_MAX=4" in told
    LiveRun(cluster, run.run_id, again, run.path, run.workdir).ended_states()
    cluster.wait_accounting(again, ["COMPLETED"])
    assert_whole(run.checkpoints, 20)
    assert [len(read_records(one.workdir, "start")) for one in array.runs] == [1, 3, 1]
    restarted = json.loads(array.cli("restart", f"{array.group_id}-4", "--json").stdout)
    assert restarted["job_id"].endswith("_4"), "a new run, and still task 4 to its program"
    wait_until(lambda: len(array.runs[2].records("start")) == 2, 60, "the restarted one trains")
