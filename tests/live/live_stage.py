"""A stage over a real test cluster (see slurmtrain.testing.stage): jobs as the researcher, faults as root."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster import Cluster

from slurmtrain.core.jobid import JobId
from slurmtrain.hosts.local import CommandResult
from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.testing.memory_model import Behaviour
from slurmtrain.testing.stage import OBEDIENT

# A script that ends when and how the test says, by a file named after its execution.
SCRIPT = """#!/bin/bash
{trap}
id=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
order="{directory}/${{id:-$SLURM_JOB_ID}}.${{SLURM_RESTART_COUNT:-0}}"
{step}
while [ ! -e "$order" ]; do sleep 0.1; done
eval "$(cat "$order")"
"""


class ResearcherHost:
    """Commands of the unprivileged user of the test cluster, native or in containers."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CommandResult:
        done = self._cluster.as_user(*argv, env=env, cwd=cwd, timeout_s=timeout_s, stdin=stdin)
        return CommandResult(tuple(argv), done.returncode, done.stdout, done.stderr)


class LiveStage:
    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self.client: SlurmClient = CliSlurmClient(ResearcherHost(cluster), environ=cluster.user_env())
        self.nodes: Sequence[str] = cluster.nodes

    def partition(self, kind: str) -> str:
        return self._cluster.partition(kind)

    def submit(self, *options: str, behaviour: Behaviour = OBEDIENT) -> JobId:
        trap = "trap '' TERM" if behaviour.ignores_term else ""
        step = "srun --output=/dev/null sleep 900 &" if behaviour.step else ""
        script = self._directory / f"job-{time.monotonic_ns()}.sh"
        script.write_text(SCRIPT.format(trap=trap, step=step, directory=self._directory), encoding="utf-8")
        chosen = options if "-p" in options else (*options, "-p", self.partition("batch"))
        return self.client.submit(script, options=["-o", "/dev/null", *chosen], cwd=self._directory)

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        restarts = self.client.observe([job_id]).jobs[job_id].restart_count
        order = self._directory / f"{job_id}.{restarts}"
        words = f"kill -{signal} $$; sleep 9" if signal else f"exit {exit_code}"
        order.with_suffix(".new").write_text(words, encoding="utf-8")
        order.with_suffix(".new").rename(order)

    def cancel_as_root(self, job_id: JobId) -> None:
        self._cluster.slurm("scancel", str(job_id))

    def fail_node(self, name: str) -> None:
        self._cluster.slurm("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")

    def drain_node(self, name: str) -> None:
        self._cluster.slurm("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=test|of us")

    def restore_node(self, name: str) -> None:
        self._cluster.resume_nodes()

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)
