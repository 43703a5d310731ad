"""A run directory, a job in the Slurm in memory, and the agent's parts on top of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.record import Record
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import MemoryConfig, MemorySlurm

RULES = load_rules().to_json()  # half a second of work


class Scene:
    """One run whose job runs."""

    def __init__(self, root: Path, spec: Spec | None = None) -> None:
        self.slurm = MemorySlurm(config=MemoryConfig(uid=os.getuid()))
        self.run = RunDir(root / "runs" / "run-1")
        for folder in (self.run.journal, self.run.attempts, self.run.logs, self.run.submissions):
            folder.mkdir(parents=True)
        self.run.plan.write_text(json.dumps({"run_id": "run-1", "spec": spec_to_dict(spec or Spec(command=("x",)))}))
        self.run.rules.write_text(RULES)
        self.run.batch_script.write_text("#!/bin/bash\n#SBATCH -N1 -t 60 --requeue\n")
        self.run.launch_script.write_text("#!/bin/bash\nexit 0\n")
        self.job_id = self.slurm.submit(self.run.batch_script)
        self.slurm.advance(5)
        self.job = JobContext(
            run=self.run, plan=self.run.read_plan(), job_id=self.job_id, restart_count=0, submission=0, host="n1",
            nodes="n1", batch_pid=1,
        )  # fmt: skip
        self.journal = JournalWriter(self.run.journal, "agent")

    def claim(self) -> Record:
        self.attempt = claim_attempt(self.run, self.job.owner_record())
        return Record(self.journal, self.run.journal, self.attempt.number)

    def calls(self, *names: str) -> list[str]:
        return [call.name for call in self.slurm.calls if call.name in names]
