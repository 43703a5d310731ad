"""Run directories as the agent leaves them, and a Slurm in memory that has their jobs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.jobid import JobId
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.ops.timeline import RunView, read_view
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import MemorySlurm

SCRIPT = "#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --requeue\n#SBATCH --exclusive\n#SBATCH --time=60\nsleep 100\n"
T0 = 1_790_000_000.0


class Slurm(MemorySlurm):
    """Takes the arguments that the batch script gets, and forgets them: its jobs do nothing."""

    def submit(self, script: Path, *, arguments: Sequence[str] = (), **more: Any) -> JobId:
        self.arguments = tuple(arguments)
        job_id: JobId = super().submit(script, **more)
        return job_id


class MadeRun:
    """One run and the words that its writers add to it."""

    def __init__(self, store: Path, run_id: str, spec: Spec, nodes: int = 1) -> None:
        self.dir = RunDir(store / "runs" / run_id)
        for folder in ("attempts", "checkpoints", "journal", "logs", "submissions"):
            (self.dir.path / folder).mkdir(parents=True)
        self.dir.plan.write_bytes(to_json({"run_id": run_id, "uid": 1000, "spec": spec_to_dict(spec)}))
        self.dir.batch_script.write_text(SCRIPT.format(nodes=nodes))
        self.journal = JournalWriter(self.dir.journal, "agent-test")
        self.clock = itertools.count(1)
        self.write(ev.RunCreated(at=T0, who="user", name=spec.name, user="ann", uid=1000, host="login"))

    def write(self, *events: ev.Event) -> None:
        self.journal.catch_up()
        self.journal.append(*events)

    def now(self) -> float:
        return T0 + next(self.clock)

    def submitted(self, slurm: MemorySlurm, number: int = 0) -> JobId:
        job_id = slurm.submit(self.dir.batch_script)
        slurm.advance(2)  # it starts, where nothing is in its way
        publish_once(self.dir.submission(number), to_json({"job_id": str(job_id)}))
        self.write(ev.Submitted(at=self.now(), who="user", submission=number, job_id=str(job_id)))
        return job_id

    def attempt(self, job_id: JobId, restart_count: int = 0, nodes: str = "n1") -> int:
        claimed = claim_attempt(self.dir, {"job_id": str(job_id), "restart_count": restart_count, "host": "n1"})
        self.write(
            ev.AttemptStarted(
                at=self.now(),
                who="gate",
                attempt=claimed.number,
                job_id=str(job_id),
                restart_count=restart_count,
                host="n1",
                nodes=nodes,
            )
        )
        return claimed.number

    def launch(self, attempt: int, number: int = 0, log: str = "", at: float | None = None, offset: int = 0) -> None:
        self.write(
            ev.LaunchStarted(
                at=at if at is not None else self.now(),
                who="agent",
                attempt=attempt,
                launch=number,
                log_file=log,
                log_offset=offset,
            )
        )

    def launch_ended(self, attempt: int, number: int = 0, code: int = 1, log_end: int = 0) -> None:
        self.write(
            ev.LaunchEnded(
                at=self.now(),
                who="agent",
                attempt=attempt,
                launch=number,
                exit_code=code,
                duration_s=5.0,
                log_end=log_end,
            )
        )

    def diagnosed(self, attempt: int, launch: int, **diagnosis: Any) -> None:
        self.write(ev.Diagnosed(at=self.now(), who="agent", attempt=attempt, launch=launch, diagnosis=diagnosis))

    def decided(self, attempt: int, action: Action, state: RunState, *, launch: int = -1, **more: Any) -> None:
        decision = Decision(action, state, more.pop("cause", "unknown"), more.pop("reason", "because"), **more)
        if action is not Action.RESTART_IN_PLACE:
            self.dir.attempt(attempt).publish_decision(decision_to_dict(decision))
        self.write(
            ev.Decided(at=self.now(), who="agent", attempt=attempt, launch=launch, decision=decision_to_dict(decision))
        )

    @property
    def view(self) -> RunView:
        return read_view(self.dir)

    @property
    def state(self) -> Run:
        return fold(read_journal(self.dir.journal))


def make_run(store: Path, run_id: str = "train-1", *, nodes: int = 1, **spec: Any) -> MadeRun:
    return MadeRun(store, run_id, Spec(command=("python", "train.py"), **spec), nodes)
