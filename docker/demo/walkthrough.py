#!/usr/bin/env python3
"""Three bad days of a training, and what slurmtrain makes of them, on a real Slurm. Exit code 0 if all went as told."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import checkpoints
from stage import (
    DemoError,
    Follower,
    Promises,
    ask,
    has_accounting,
    hosts_of,
    job_rows,
    show,
    submit,
    tell,
    title,
    wait_until,
)

HERE = Path(__file__).resolve().parent
STEPS = 120
PATIENCE_S = 300.0


class Walkthrough:
    """The three scenes."""

    def __init__(self) -> None:
        self.promises = Promises()
        self.accounting = has_accounting()
        self.runs: list[str] = []

    def crash(self) -> None:
        title("1. A crash that is worth a retry")
        tell("""A training on 2 nodes with 2 ranks each runs into a node with bad memory: at step 60, a rank dies there
            of a segmentation fault. slurmtrain restarts it at once, on the same nodes, from its newest checkpoint:
            most crashes never come back. This one does, at the same place. So the job goes back to the queue under
            the same job id, that node is left out, and the training goes on from the checkpoint elsewhere.""")
        show("cat", "crash.yaml")
        run_id, run_dir, job_id = self._submit("crash.yaml")
        with Follower(run_dir / "logs"):
            code = self._wait(run_id)
        check = self.promises.check
        check("the run was completed without anybody's help", code == 0, f"exit code {code} of slurmtrain wait")
        if self.accounting:
            rows = self._rows(job_id, 2)
            states = [row["State"] for row in rows]
            check("Slurm saw one job run twice: requeued, then completed", states == ["REQUEUED", "COMPLETED"], states)
            bad = _bad_node(Path("faults/segv-60"))
            nodes = [hosts_of(row["NodeList"]) for row in rows]
            told = f"the second time ran without the bad node {bad}"
            check(told, bad in nodes[0] and bad not in nodes[-1], nodes)
        self._check_result(run_dir)
        starts = _starts(run_dir / "logs")
        check("it began at step 0, then twice from the checkpoint of step 50", starts == [0, 50, 50], starts)

    def mistake(self) -> None:
        title("2. An error that no retry can cure")
        tell("""This training has a mistake in its code: after some steps it raises a KeyError. Trying again would waste
            the nodes, so slurmtrain tells what happened and gives them back at once.""")
        run_id, run_dir, job_id = self._submit("mistake.yaml")
        with Follower(run_dir / "logs"):
            code = self._wait(run_id)
        check = self.promises.check
        check("the run failed, and `slurmtrain wait` says so", code == 1, f"exit code {code}")
        starts = _starts(run_dir / "logs")
        check("it was started once and not again", starts == [0], starts)
        if self.accounting:
            rows = self._rows(job_id, 1)
            check("Slurm saw one job that failed", [row["State"] for row in rows] == ["FAILED"], rows)
        tell("The queue is empty and the nodes are free again:")
        show("squeue", "--me")
        show("sinfo", "-p", "batch")
        check("nothing is left in the queue", not ask("squeue", "--me", "-h").strip())

    def preemption(self) -> None:
        title("3. Somebody else is more important")
        tell("""A healthy training runs in the partition `batch`. Then an urgent job wants the whole cluster, and Slurm
            takes the nodes away. That is no failure: the training is asked to save and leaves, waits in the queue
            under the same job id, and goes on from its checkpoint when the urgent job is over.""")
        run_id, run_dir, job_id = self._submit("preempted.yaml")
        log = run_dir / "logs"
        with Follower(log):
            wait_until(lambda: _has(log, "step 40/"), PATIENCE_S, "step 40 of the training")
            urgent_id = self._submit_urgent()
            code = self._wait(run_id)
        check = self.promises.check
        check("the run was completed without anybody's help", code == 0, f"exit code {code} of slurmtrain wait")
        if self.accounting:
            states = [row["State"] for row in self._rows(job_id, 2)]
            check(
                "Slurm saw one job run twice: preempted, then completed", states == ["PREEMPTED", "COMPLETED"], states
            )
            urgent_states = [row["State"] for row in self._rows(urgent_id, 1)]
            check("the urgent job got the nodes and was completed", urgent_states == ["COMPLETED"], urgent_states)
        self._check_result(run_dir)
        starts = _starts(run_dir / "logs")
        went_on = len(starts) == 2 and starts[0] == 0 and starts[1] >= 25
        check("it went on from a checkpoint and did not begin anew", went_on, starts)

    def _submit_urgent(self) -> str:
        nodes = len(ask("sinfo", "-h", "-N", "-p", "urgent", "-o", "%N").split())
        argv = ["sbatch", "-p", "urgent", f"-N{nodes}", "--exclusive", "-J", "urgent", "-o", "/dev/null"]
        tell(f"Now the urgent job comes: {' '.join(argv)} --wrap 'sleep 5'")
        job_id = ask(*argv, "--parsable", "--wrap", "sleep 5").strip()
        if not job_id:
            raise DemoError("Slurm did not take the urgent job")
        wait_until(lambda: "RUNNING" in ask("squeue", "-h", "-j", job_id, "-o", "%T"), PATIENCE_S, "the urgent job")
        show("squeue", "--me")
        return job_id

    def finale(self) -> None:
        title("What is left to read")
        tell("All runs, as `slurmtrain status` shows them:")
        show("slurmtrain", "status")
        tell("And the question at 3 a.m. is what happened, to the run on the bad node and to the one with the mistake:")
        for run_id in self.runs[:2]:
            show("slurmtrain", "explain", run_id)

    def _submit(self, job_file: str) -> tuple[str, Path, str]:
        run_id, run_dir, job_id = submit(job_file)
        self.runs.append(run_id)
        return run_id, run_dir, job_id

    def _wait(self, run_id: str) -> int:
        return show("slurmtrain", "wait", run_id, "--interval", "5", timeout_s=PATIENCE_S)

    def _rows(self, job_id: str, count: int) -> list[dict[str, str]]:
        """Accounting rows; they arrive a moment after the job has ended."""
        deadline = time.monotonic() + 20
        while True:
            rows = job_rows(job_id)
            open_ = [row for row in rows if row["State"] in ("RUNNING", "PENDING", "COMPLETING")]
            if (len(rows) >= count and not open_) or time.monotonic() > deadline:
                return rows
            time.sleep(0.5)

    def _check_result(self, run_dir: Path) -> None:
        """The newest checkpoint is that of the last step, and of a good model."""
        newest = sorted((run_dir / "checkpoints").glob("step-*.npz"))[-1]
        _, facts = checkpoints.load(newest)
        told = f"the last checkpoint is that of step {STEPS}, and the model is right on more than 90 % of new digits"
        self.promises.check(told, facts["step"] == STEPS and facts.get("accuracy", 0) > 0.9, facts)


def _starts(folder: Path) -> list[int]:
    """The step at which each launch began, as the training itself printed it."""
    text = "".join(path.read_text("utf-8", "replace") for path in sorted(folder.glob("train-*.log")))
    return [int(found or 0) for found in re.findall(r"training: (?:starts anew|resumes from step-(\d+))", text)]


def _bad_node(record: Path) -> str:
    """The node on which the crash happened first, as the training wrote it down."""
    return record.read_text().split()[0] if record.exists() else "(none: nothing crashed)"


def _has(folder: Path, text: str) -> bool:
    return any(text in path.read_text("utf-8", "replace") for path in folder.glob("train-*.log"))


def _prepare() -> Path:
    """A folder of the demo's own, with all it needs; the runs are kept in it."""
    folder = Path.cwd() / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir()
    for path in [*HERE.glob("*.py"), *HERE.glob("*.yaml")]:
        shutil.copy(path, folder)
    (folder / "slurmtrain.toml").write_text('store = "runs"\n')
    return folder


def _cluster_option() -> str:
    """What `docker/mini-slurm` needs to find this cluster again."""
    facts = Path(os.environ.get("MINI_SLURM_JSON", "/nonexistent"))
    name = json.loads(facts.read_text()).get("name", "default") if facts.exists() else "default"
    return "" if name == "default" else f" --name {name}"


def main() -> int:
    folder = _prepare()
    os.chdir(folder)
    tell(f"""This is a real Slurm on one machine. You are an ordinary user of it. Everything below happens as you would
        do it, in {folder}.""")
    walk = Walkthrough()
    began = time.monotonic()
    try:
        walk.crash()
        walk.mistake()
        walk.preemption()
        walk.finale()
    except DemoError as exc:
        print(f"\ndemo: {exc}", file=sys.stderr)
        return 1
    broken = walk.promises.broken
    took = f"{time.monotonic() - began:.0f} s"
    tell(f"""That was the demo, {took}. To look around: `docker/mini-slurm shell{_cluster_option()}`, `cd {folder}`,
        then `slurmtrain status`, `slurmtrain logs`, or submit a job file of your own.""")
    if broken:
        print(f"\ndemo: {len(broken)} promise(s) broken: " + "; ".join(broken), file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
