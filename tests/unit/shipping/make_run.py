"""A run directory as submit and a job leave it, with a secret wherever one may be."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.spec import Environment, Ship, Spec, spec_to_dict
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import RunDir

SECRET = "hunter2Secret99"


def make_run(store: Path, url: str | None, run_id: str = "t-20261130-0000-aaaaaaaa", **ship: object) -> RunDir:
    run = RunDir(store / "runs" / run_id)
    for name in ("attempts/000/launches/0", "attempts/000/scene/n1", "attempts/000/nodes", "checkpoints"):
        (run.path / name).mkdir(parents=True)
    for name in ("journal", "logs", "submissions", "ship"):
        (run.path / name).mkdir()
    secret = Environment(variables={"DB_PASSWORD": SECRET})
    spec = Spec(command=("x",), name="t", ship=Ship(url=url, **ship), environment=secret)  # type: ignore[arg-type]
    plan = {"run_id": run_id, "created_at": time.time(), "user": "me", "spec": spec_to_dict(spec)}
    run.plan.write_text(json.dumps(plan))
    run.spec.write_text(f'environment:\n  variables:\n    DB_PASSWORD: "{SECRET}"\n')
    run.log_file("1").write_text(f"line 1\nconnects with {SECRET}\n")
    (run.path / "attempts/000/scene/n1/env.txt").write_text(f"DB_PASSWORD={SECRET}\nHOME=/root\n")
    (run.path / "attempts/000/owner.json").write_text('{"job_id": "1"}')
    (run.path / "attempts/000/nodes/n1.json").write_text("{}")
    JournalWriter(run.journal, "submit").append(
        ev.RunCreated(at=time.time(), who="me", name="t", user="me", uid=0, host="h")
    )
    return run


def end_run(run: RunDir, age_s: float = 60.0) -> None:
    """Say that it has finished, so long ago."""
    decision = Decision(Action.COMPLETE, RunState.COMPLETED, "no_failure", "it has finished")
    journal = JournalWriter(run.journal, "agent")
    journal.append(ev.Decided(at=time.time(), who="agent", attempt=0, decision=decision_to_dict(decision)))
    past = time.time() - age_s
    for path in [*run.logs.iterdir(), *run.journal.iterdir()]:
        os.utime(path, (past, past))


def local_text(run: RunDir, name: str) -> str:
    """What a file should be remotely."""
    return (run.path / name).read_text().replace(SECRET, "***")
