"""The reading and steering commands on a real Slurm: what they say and do, checked against Slurm and the processes."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from changes import Changes
from cluster import Cluster, wait_until

# Counts steps, each a checkpoint; goes on from the newest; saves and leaves when the stop file appears.
TRAIN = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"])
resume = os.environ["SLURMTRAIN_RESUME_FROM"]
rank, attempt = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURMTRAIN_ATTEMPT"])
step = int(resume.rpartition("-")[2]) if resume else 0
last, fail_at = int(sys.argv[1]), int(sys.argv[2])
while step < last:
    if pathlib.Path(os.environ["SLURMTRAIN_STOP_FILE"]).exists():
        print("saved and left at", step, flush=True)
        sys.exit(0)
    step += 1
    print("attempt", attempt, "step", step, flush=True)
    if step == fail_at and attempt == 0:
        print("bad step", step, flush=True)  # nothing that a rule knows: a retry may help
        sys.exit(7)
    if rank == 0:
        (folder / ("step-%d" % step)).write_text(str(step))
    time.sleep(0.4)
print("finished", flush=True)
"""
Run = Mapping[str, Any]


class Commands:
    """slurmtrain as the researcher types it."""

    def __init__(self, cluster: Cluster, store: Path) -> None:
        self.cluster = cluster
        self.store = store
        self._program = store / "train.py"
        self._program.write_text(TRAIN, encoding="ascii")
        self._program.chmod(0o644)

    def call(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        return self.cluster.as_user(
            "slurmtrain", *words, env={"SLURMTRAIN_STORE": str(self.store)}, timeout_s=timeout_s
        )

    def ok(self, *words: str, timeout_s: float = 60) -> str:
        done = self.call(*words, timeout_s=timeout_s)
        assert done.returncode == 0, f"{words}: rc {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(self, *options: str, last: int = 4, fail_at: int = -1, nodes: int = 1) -> Run:
        """A run of the program above on the lane's partition."""
        size = ["-N", str(nodes), "-p", self.cluster.partition(), "-t", "10"]
        words = ["--json", *size, *options, "--", "python3", str(self._program), str(last), str(fail_at)]
        answer: Run = json.loads(self.ok("submit", *words))
        return answer

    def status(self, run: Run) -> dict[str, Any]:
        rows: list[dict[str, Any]] = json.loads(self.ok("status", "--json", run["run_id"]))
        return rows[0]

    def wait_for(self, run: Run, *states: str, timeout_s: float = 60) -> dict[str, Any]:
        changes = Changes(Path(run["run_dir"]))

        def look() -> dict[str, Any] | None:
            row = self.status(run) if changes.due() else {"state": None}
            return row if row["state"] in states else None

        return wait_until(look, timeout_s, f"{run} in {states}")

    def log(self, run: Run) -> str:
        return (Path(run["run_dir"]) / "logs" / f"train-{run['job_id']}.log").read_text(encoding="utf-8")


@pytest.fixture
def do(cluster: Cluster, store: Path) -> Commands:
    return Commands(cluster, store)


def test_a_run_that_waits_says_why_and_stop_cancels_it(cluster: Cluster, do: Commands) -> None:
    everything = str(len(cluster.nodes))
    blocker = cluster.sbatch("-N", everything, "--exclusive", script="#!/bin/bash\nsleep 300\n")
    cluster.wait_state(blocker, "RUNNING")
    run = do.submit()
    row = do.wait_for(run, "Inqueue")
    wait_until(lambda: "free nodes" in do.status(run)["reason"], 30, "Slurm's reason in plain words", 0.5)
    wait_until(lambda: tells_start(cluster, do, run), 90, "its priority, and when Slurm expects to start it", 1.0)
    assert row["vocabulary"]["batch"] == "RUNNABLE"
    assert row["attempt"] is None
    assert "free nodes" in " ".join(do.ok("explain", run["run_id"]).split())
    assert "would" in do.ok("stop", "--dry-run", run["run_id"])
    assert cluster.job(int(run["job_id"])) is not None
    do.ok("stop", run["run_id"], "-m", "wrong data")
    cluster.wait_state(int(run["job_id"]), "CANCELLED")
    assert do.status(run)["state"] == "Stopped"
    assert "wrong data" in " ".join(do.ok("explain", run["run_id"]).split())
    assert "already" in do.ok("stop", run["run_id"])
    assert cluster.job(blocker).state == "RUNNING"


def tells_start(cluster: Cluster, do: Commands, run: Run) -> bool:
    """As ``scontrol`` has both; Slurm's scheduler moves the time at each of its rounds."""
    told, slurms = do.status(run)["reason"], cluster.show_job(run["job_id"])
    if slurms["StartTime"] == "Unknown":
        return False
    start = datetime.fromisoformat(slurms["StartTime"])
    return f"start it at {start:%H:%M on %d %b}" in told and f"priority {slurms['Priority']}" in told


def test_a_running_training_saves_and_stops_and_stays_stopped(cluster: Cluster, do: Commands) -> None:
    run = do.submit(last=500)
    do.wait_for(run, "Running")
    asked = time.monotonic()
    do.ok("stop", run["run_id"])
    assert do.call("wait", run["run_id"], "--timeout", "30").returncode == 1
    assert time.monotonic() - asked < 25
    cluster.wait_gone(int(run["job_id"]))
    assert "saved and left at" in do.log(run)
    assert do.status(run)["state"] == "Stopped"
    assert cluster.user in do.ok("explain", run["run_id"])
    time.sleep(3)
    job = cluster.job(int(run["job_id"]))
    assert job is None or (job.restarts == 0 and job.state not in {"PENDING", "RUNNING"})


def test_stop_now_does_not_wait_for_the_training(cluster: Cluster, do: Commands) -> None:
    run = do.submit(last=500)
    do.wait_for(run, "Running")
    do.ok("stop", "--now", run["run_id"])
    assert do.status(run)["state"] == "Stopped"
    job_id = int(run["job_id"])
    wait_until(lambda: not cluster.processes(job_id), 30, "no process of the job is left")
    cluster.wait_state(job_id, "CANCELLED")
    if cluster.has_accounting:
        wait_until(lambda: cluster.states_of(job_id) == ["CANCELLED"], 15, "one execution, cancelled")


def test_a_held_run_is_released_once_and_goes_on_from_its_checkpoint(cluster: Cluster, do: Commands) -> None:
    run = do.submit("--set", "retry.in_place=1", "--set", "retry.requeues=0", last=6, fail_at=3)
    row = do.wait_for(run, "Held")
    cluster.wait_gone(int(run["job_id"]))
    assert row["decision"] == "hold"
    assert do.call("wait", run["run_id"], "--or-held", "--timeout", "10").returncode == 1
    assert f"slurmtrain release {run['run_id']}" in do.ok("explain", run["run_id"])
    do.ok("release", "--dry-run", run["run_id"])
    assert do.status(run)["state"] == "Held"
    do.ok("release", run["run_id"])
    do.call("release", run["run_id"])
    assert do.call("wait", run["run_id"], "--timeout", "60").returncode == 0
    later = [job for job in cluster.jobs() if job.user == cluster.user and job.job_id > int(run["job_id"])]
    assert len(later) == 1  # slurmctld may have forgotten the first one
    output = do.ok("logs", run["run_id"])
    assert output.count("attempt 1 step 3") == 1
    assert "attempt 1 step 1" not in output
    assert do.call("release", run["run_id"]).returncode == 6


def test_a_failed_run_is_restarted_as_a_new_one_from_its_checkpoint(do: Commands) -> None:
    run = do.submit("--set", "retry.in_place=0", "--set", "retry.requeues=0", last=5, fail_at=3)
    do.wait_for(run, "Failed")
    again = json.loads(do.ok("restart", "--json", run["run_id"]))
    assert again["run_id"] != run["run_id"]
    assert again["restarted_from"] == run["run_id"]
    assert json.loads((Path(again["run_dir"]) / "plan.json").read_text())["restarted_from"] == run["run_id"]
    assert run["run_id"] in (Path(again["run_dir"]) / "spec.yaml").read_text()
    # attempt 0 of the new run begins behind step 2, where the old one had left its checkpoint, and fails like it
    do.wait_for(again, "Failed")
    assert "step 1" not in do.log(again)
    assert "step 3" in do.log(again)
    other = json.loads(do.ok("restart", "--json", "--no-resume", "--set", "name=other", run["run_id"]))
    assert json.loads((Path(other["run_dir"]) / "plan.json").read_text())["spec"]["name"] == "other"
    assert json.loads(do.ok("explain", "--json", run["run_id"]))["restarted_as"] == [again["run_id"], other["run_id"]]
    wrong = do.call("restart", "--set", "resources.nods=3", run["run_id"])
    assert wrong.returncode == 5
    assert "did you mean 'nodes'" in wrong.stderr
    running = do.submit(last=500)
    assert do.call("restart", running["run_id"]).returncode == 6


def test_logs_follow_a_run_through_its_requeue_to_its_end(cluster: Cluster, do: Commands) -> None:
    run = do.submit("--set", "retry.in_place=0", last=6, fail_at=3)
    followed = do.call("logs", "--follow", run["run_id"], timeout_s=120)
    assert followed.returncode == 0, followed.stderr
    lines = followed.stdout.splitlines()
    steps = [line.rpartition(": ")[2] for line in lines if "step" in line and "attempt" in line and "===" not in line]
    wanted = [f"attempt 0 step {n}" for n in (1, 2, 3)] + [f"attempt 1 step {n}" for n in (3, 4, 5, 6)]
    assert [step for step in steps if step in wanted] == wanted
    assert "finished" in followed.stdout
    assert cluster.job(int(run["job_id"])).restarts == 1
    assert do.status(run)["state"] == "Completed"
    assert do.ok("logs", run["run_id"]) == do.log(run)
    first = do.ok("logs", run["run_id"], "--attempt", "0", "--launch", "0")
    assert "bad step 3" in first
    assert "attempt 1" not in first
    assert do.ok("logs", run["run_id"], "--tail", "2") == "".join(do.log(run).splitlines(keepends=True)[-2:])
    assert do.call("logs", run["run_id"], "--attempt", "7").returncode == 3


@pytest.mark.nodes(2)
def test_explain_names_the_rank_the_node_and_the_line(cluster: Cluster, do: Commands) -> None:
    program = do.store / "fails.py"
    program.write_text(
        "import os, pathlib, time\n"
        "if os.environ['SLURM_PROCID'] == '1':\n"
        f"    pathlib.Path({str(do.store)!r}, 'node').write_text(os.environ['SLURMD_NODENAME'])\n"
        "    import nothere\n"
        "time.sleep(60)\n"
    )
    size = ["-N", "2", "-p", cluster.partition(), "-t", "5"]
    run = json.loads(do.ok("submit", "--json", *size, "--", "python3", str(program)))
    do.wait_for(run, "Failed", timeout_s=60)
    found = json.loads(do.ok("explain", "--json", run["run_id"]))
    assert found["diagnosis"]["cause"] == "import_error"
    assert found["diagnosis"]["rank"] == 1
    assert found["diagnosis"]["node"] == (do.store / "node").read_text()
    line = next(line for line in found["evidence"] if "nothere" in line["text"])
    written = Path(line["file"]).read_text().splitlines()[line["line"] - 1]
    assert "nothere" in written
    in_place = found["budgets"][
        "in_place"
    ]  # a step that is killed may take its last lines with it: then it is tried once
    assert in_place["allowed"] == 5
    assert in_place["used"] <= 1
    screen = do.ok("explain", run["run_id"])
    assert len(screen.partition("\nTimeline\n")[0].splitlines()) <= 40
    assert "rank 1" in " ".join(screen.split())
    assert f"slurmtrain restart {run['run_id']}" in screen
    assert "nothere" in do.ok("logs", run["run_id"], "--rank", "1")
    assert "nothere" not in do.ok("logs", run["run_id"], "--rank", "0")


def test_wait_tells_by_its_exit_code(do: Commands) -> None:
    good, bad = (
        do.submit(last=2),
        do.submit("--set", "retry.in_place=0", "--set", "retry.requeues=0", last=3, fail_at=1),
    )
    assert do.call("wait", good["run_id"], "--timeout", "60").returncode == 0
    done = do.call("wait", "--json", good["run_id"], bad["run_id"], "--timeout", "60")
    assert done.returncode == 1
    assert [row["state"] for row in json.loads(done.stdout)] == ["Completed", "Failed"]
    slow = do.submit(last=500)
    assert do.call("wait", slow["run_id"], "--timeout", "3").returncode == 124
    assert do.call("wait", "nosuchrun").returncode == 3


@pytest.mark.whole_cluster
def test_without_the_controller_reading_works_and_stop_says_what_stands(cluster: Cluster, do: Commands) -> None:
    run = do.submit(last=500)
    do.wait_for(run, "Running")
    cluster.kill_daemon("slurmctld")
    shown = do.call("status", run["run_id"])
    assert shown.returncode == 0
    assert "Running" in shown.stdout
    assert "what the journals know" in shown.stderr
    assert do.call("explain", run["run_id"]).returncode == 0
    stopped = do.call("stop", run["run_id"])
    assert stopped.returncode == 4
    assert "Traceback" not in stopped.stderr
    # the agent sees the file all the same
    wait_until(lambda: "saved and left at" in do.log(run), 30, "the training saves without a controller", 0.5)
    cluster.start_daemon("slurmctld")
    wait_until(lambda: "UP" in cluster.slurm("scontrol", "ping", check=False), 30, "slurmctld answers again")
    do.ok("stop", "--now", run["run_id"])
    cluster.wait_gone(int(run["job_id"]))
    assert do.status(run)["state"] == "Stopped"
