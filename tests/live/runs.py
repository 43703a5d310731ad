"""Submitting runs as the researcher and looking at them from outside: Slurm, processes, checkpoints, the job's log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from changes import Changes
from cluster import Cluster, wait_until
from programs.place import place_programs, read_newest_checkpoint, read_records

PYTHON = "/usr/bin/python3"


@dataclass
class LiveRun:
    """One submitted run."""

    cluster: Cluster
    run_id: str
    job_id: int | str  # of an array task: "123_4"
    path: Path
    workdir: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def log(self) -> str:
        """All output of all jobs of the run."""
        return "".join(p.read_text("utf-8", "replace") for p in sorted((self.path / "logs").glob("train-*.log")))

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        """What the training's ranks wrote down themselves."""
        return read_records(self.workdir, event)

    def starts(self, rank: int = 0) -> list[str]:
        """``attempt.launch`` of each start of a rank, from the training's own records."""
        return [row["launch"] for row in self.records("start") if row["rank"] == rank]

    def newest_step(self) -> int:
        return int(read_newest_checkpoint(self.checkpoints)["step"])

    @property
    def ended(self) -> bool:
        """Whether somebody has decided that the run does not go on."""
        return any(decision["action"] not in ("requeue", "restart_in_place") for decision in self.decisions())

    def wait_started(self, launches: int = 1, timeout_s: float = 60) -> None:
        wait_until(lambda: len(self.starts()) >= launches, timeout_s, f"launch {launches} of {self.run_id} starts")

    def wait_step(self, step: int, timeout_s: float = 90) -> None:
        def reached() -> bool:
            found = sorted(self.checkpoints.glob("step-*.json"))
            return bool(found) and int(found[-1].stem.split("-")[1]) >= step

        wait_until(reached, timeout_s, f"a checkpoint of step {step}")

    def wait_slurm(self, *states: str, timeout_s: float = 90) -> None:
        """Until slurmctld says one of these of the job, and no task of it is left."""
        self.cluster.wait_state(self.job_id, *states, timeout_s=timeout_s)

    def ended_states(self) -> list[str]:
        """Slurm's accounting, one word per execution, once the last row is no longer written: it lags behind squeue."""

        def ended() -> list[str] | None:
            found = self.cluster.states_of(self.job_id)
            return found if found and found[-1].split()[0] not in {"PENDING", "RUNNING", "REQUEUED"} else None

        return wait_until(ended, 30, f"accounting has the end of job {self.job_id}") or []

    def wait_state(self, *states: str, timeout_s: float = 120) -> dict[str, Any]:
        """Until ``slurmtrain status`` says one of these of the run."""
        changes = Changes(self.path)

        def look() -> dict[str, Any] | None:
            if not changes.due():
                return None
            row = self.status()
            return row if row["state"] in states else None

        try:
            return wait_until(look, timeout_s, f"{self.run_id} is {' or '.join(states)}")  # type: ignore[return-value]
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n--- log\n{self.log()[-4000:]}") from exc

    def status(self) -> dict[str, Any]:
        rows = json.loads(self.slurmtrain("status", self.run_id, "--json").stdout)
        assert len(rows) == 1, rows
        return dict(rows[0])

    def decisions(self) -> list[dict[str, Any]]:
        """Published decisions of all attempts, in order."""
        return [json.loads(p.read_text()) for p in sorted(self.path.glob("attempts/[0-9]*/decision.json"))]

    def diagnoses(self) -> list[dict[str, Any]]:
        """What the journal says was found, in order."""
        rows = [json.loads(line) for path in sorted(self.path.glob("journal/*.jsonl")) for line in path.open()]
        return [dict(row["diagnosis"]) for row in rows if row.get("kind") == "diagnosed"]

    def slurmtrain(self, *words: str, check: bool = True, timeout_s: float = 180) -> Any:
        return slurmtrain(self.cluster, self.path.parent.parent, *words, check=check, timeout_s=timeout_s)

    def watch_once(self) -> str:
        return str(self.slurmtrain("watch", "--once").stdout)

    def rank_processes(self) -> list[Any]:
        """Processes of the training itself: tasks of its steps, neither companions nor the batch script's side."""
        return [p for p in self.cluster.processes(self.job_id) if "SLURMTRAIN_LAUNCH_KEY" in p.environ and p.in_step]


def slurmtrain(
    cluster: Cluster,
    store: Path,
    *words: str,
    check: bool = True,
    timeout_s: float = 180,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Run the command line as the researcher; with ``check`` it has to end with exit code 0."""
    whole = {"SLURMTRAIN_STORE": str(store), **(env or {})}
    result = cluster.as_user("slurmtrain", *words, env=whole, cwd=store, timeout_s=timeout_s)
    if check:
        assert result.returncode == 0, (
            f"slurmtrain {' '.join(words)}: {result.returncode}\n{result.stdout}{result.stderr}"
        )
    return result


def trainer(store: Path, *arguments: str) -> list[str]:
    """The command of the configurable training program."""
    return [PYTHON, str(place_programs(store) / "trainer.py"), *arguments]


def submit(
    cluster: Cluster,
    store: Path,
    command: Sequence[str],
    *,
    name: str = "t",
    nodes: int = 2,
    ranks: int = 1,
    partition: str = "batch",
    time_limit: str = "10",
    launcher: str = "srun",
    resources: dict[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    **spec: Any,
) -> LiveRun:
    """Submit a run through ``slurmtrain submit`` as the researcher; the job inherits ``env``."""
    workdir = store / f"work-{name}"
    workdir.mkdir()
    owner = store.stat()
    os.chown(workdir, owner.st_uid, owner.st_gid)
    asked = {
        "nodes": nodes,
        "tasks_per_node": ranks,
        "time_limit": time_limit,
        "partition": cluster.partition(partition),
        **(resources or {}),
    }
    body = {"name": name, "command": list(command), "launcher": launcher, "workdir": str(workdir), "resources": asked}
    path = store / f"{name}.yaml"
    path.write_text(json.dumps({**body, **spec}, indent=1))
    os.chown(path, owner.st_uid, owner.st_gid)
    answer = json.loads(slurmtrain(cluster, store, "submit", str(path), "--json", env=env).stdout)
    return LiveRun(cluster, answer["run_id"], int(answer["job_id"]), Path(answer["run_dir"]), workdir)
