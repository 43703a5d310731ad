"""What must hold after a round of the live crash test, from accounting, processes, and what the training wrote."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from cluster import Cluster
from programs.place import expected_chain, read_newest_checkpoint
from runs import LiveRun

SLACK_S = 0.05  # a record is written after the step: two processes that follow each other at once
LAUNCHING_S = 15.0  # an srun that was under way when the job was cancelled


@dataclass
class Trained:
    """One process of the training: from its first record to its last."""

    launch: str
    rank: int
    pid: int
    began: float
    ended: float

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.launch.split(".") if part.isdigit())


def trained(run: LiveRun) -> list[Trained]:
    found: dict[tuple[int, str, int], Trained] = {}
    for row in run.records():
        key = (row["pid"], row["launch"], row["rank"])
        one = found.setdefault(key, Trained(row["launch"], row["rank"], row["pid"], row["at"], row["at"]))
        one.ended = max(one.ended, row["at"])
    return sorted(found.values(), key=lambda one: one.began)


def check_run(run: LiveRun, cancelled_at: float | None) -> list[str]:
    """Sentences about what is wrong."""
    return [
        f"{run.run_id} (job {run.job_id}): {problem}"
        for problem in (
            *_one_at_a_time(run),
            *_steps_follow(run),
            *_decided_once(run),
            *_requeued_once(run),
            *_stays_cancelled(run, cancelled_at),
        )
    ]


def _one_at_a_time(run: LiveRun) -> list[str]:
    found = []
    every = trained(run)
    for first, second in ((a, b) for i, a in enumerate(every) for b in every[i + 1 :]):
        if first.launch == second.launch and first.rank != second.rank:
            continue
        if first.ended > second.began + SLACK_S:
            found.append(f"two at once for {first.ended - second.began:.2f} s: {first} and {second}")
        if second.order <= first.order:
            found.append(f"launch {second.launch} came after {first.launch}")
    return found


def _steps_follow(run: LiveRun) -> list[str]:
    """Each start goes on from the newest checkpoint, and the content of the last one is that of so many steps."""
    saved, found = 0, []
    for row in run.records():
        if row["event"] == "saved":
            saved = max(saved, row["step"])
        elif row["event"] == "start" and row["step"] < saved:
            found.append(f"launch {row['launch']} began at step {row['step']}, but {saved} steps were saved")
    if saved:
        state = read_newest_checkpoint(run.checkpoints)
        if state["chain"] != expected_chain(state["step"]) or state["step"] < saved:
            found.append(f"steps were lost or repeated: {state}, {saved} were saved")
    return found


def _decided_once(run: LiveRun) -> list[str]:
    attempts = sorted(run.path.glob("attempts/[0-9]*"))
    undecided = [path.name for path in attempts if not (path / "decision.json").exists()]
    return [f"attempts without a decision: {undecided}"] if undecided else []


def job_ids(run: LiveRun) -> set[int]:
    """All jobs that were ever submitted for the run."""
    records = [json.loads(path.read_text()) for path in run.path.glob("submissions/[0-9]*.json")]
    return {int(run.job_id), *(int(record["job_id"]) for record in records)}


def _requeued_once(run: LiveRun) -> list[str]:
    """An execution that a requeue ended was decided about before, by whoever requeued it; else it was one too many.

    Nobody requeues by hand here; where Slurm itself does, accounting says PREEMPTED or NODE_FAIL.
    """
    found = []
    for path in sorted(run.path.glob("attempts/[0-9]*")):
        decision = json.loads((path / "decision.json").read_text()) if (path / "decision.json").exists() else {}
        owner = json.loads((path / "owner.json").read_text())
        rows = run.cluster.states_of(owner["job_id"])
        state = rows[owner["restart_count"]] if owner["restart_count"] < len(rows) else ""
        if decision.get("decided_by") == "gate" and state == "REQUEUED":
            found.append(f"attempt {path.name} was ended by a second requeue for the one before: {decision}")
    return found


def _stays_cancelled(run: LiveRun, at: float | None) -> list[str]:
    if at is None:
        return []
    late = [one for one in trained(run) if one.began > at + LAUNCHING_S]
    return [f"trained {late[0].began - at:.1f} s after it was cancelled: {late[0]}"] if late else []


def check_cluster(cluster: Cluster, runs: list[LiveRun], known: set[int]) -> list[str]:
    """No job that nobody knows of, no process left."""
    ids = set().union(known, *(job_ids(run) for run in runs))
    unknown = [job for job in cluster.jobs() if job.job_id not in ids and job.user == cluster.user]
    alive: list[Any] = [p.argv for run in runs for p in run.rank_processes()]
    found = [f"jobs of no run that wait or run: {unknown}"] if _living(unknown) else []
    return [*found, *([f"processes left: {alive[:3]}"] if alive else [])]


def _living(jobs: list[Any]) -> list[Any]:
    return [job for job in jobs if job.state in {"PENDING", "RUNNING"}]
