"""Which job, which run: what the batch script's environment says about where we are."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.errors import UsageError
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import Plan, RunDir


@dataclass(frozen=True, slots=True)
class JobContext:
    """The execution we are part of. ``batch_pid``, the batch script's process, tells one execution from another."""

    run: RunDir
    plan: Plan
    job_id: JobId
    restart_count: int
    submission: int
    host: str
    nodes: str
    batch_pid: int

    @property
    def log_file(self) -> Path:
        return self.run.log_file(str(self.job_id))

    def find_stop_request(self) -> Path | None:
        """The file by which a person asked the run to stop; never raises.

        Run directories are writable for nobody else, so a colleague's file lies in a folder that the job file names.
        """
        shared = self.plan.spec.stop.folder
        candidates = (self.run.stop_file, *((Path(shared) / self.run.run_id,) if shared else ()))
        return next((path for path in candidates if exists(path)), None)

    def owner_record(self) -> dict[str, object]:
        """What ``owner.json`` says: the same for a second agent of the same batch script."""
        return {
            "job_id": str(self.job_id),
            "restart_count": self.restart_count,
            "submission": self.submission,
            "host": self.host,
            "batch_pid": self.batch_pid,
            "nodes": self.nodes,
        }


def read_job_context(run_dir: Path, env: Mapping[str, str]) -> JobContext:
    """Raises ``UsageError`` outside a Slurm batch job, ``NotFoundError`` where the directory is no run."""
    if not env.get("SLURM_JOB_ID", "").isdigit():
        raise UsageError("the agent runs inside a Slurm batch job; SLURM_JOB_ID is not set here")
    run = RunDir(run_dir)
    return JobContext(
        run=run,
        plan=run.read_plan(),
        job_id=_job_id(env),
        restart_count=_number(env.get("SLURM_RESTART_COUNT")),
        submission=_number(env.get("SLURMTRAIN_SUBMISSION")),
        host=env.get("SLURMD_NODENAME") or socket.gethostname(),
        nodes=",".join(env.get(f"SLURM_JOB_NODELIST{part}", "") for part in component_suffixes(env)),
        batch_pid=os.getppid(),
    )


def component_suffixes(env: Mapping[str, str]) -> list[str]:
    """What the names of Slurm's variables end in, for each component of a heterogeneous job; [""] for any other job."""
    size = _number(env.get("SLURM_HET_SIZE"))
    return [f"_HET_GROUP_{part}" for part in range(size)] if size > 1 else [""]


def read_components(env: Mapping[str, str]) -> list[JobId]:
    """The numbers of all components of a heterogeneous job, the leader first; of any other job its own."""
    return [parse_job_id(env.get(f"SLURM_JOB_ID{part}", "")) for part in component_suffixes(env)]


def _job_id(env: Mapping[str, str]) -> JobId:
    """An array task is named by array and task: its own number may be that of the whole array."""
    if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        return parse_job_id(f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}")
    return parse_job_id(env["SLURM_JOB_ID"])


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def count_nodes(env: Mapping[str, str]) -> list[int]:
    """Nodes of each component of the job; of an ordinary job one number."""
    return [int(env.get(f"SLURM_JOB_NUM_NODES{suffix}", "1")) for suffix in component_suffixes(env)]
