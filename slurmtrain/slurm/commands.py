"""Argument lists of Slurm's commands: every flag's spelling lives here.

Only options that 20.11 to 26.05 share. ``-O Name:0|`` prints a field in full, closed by a bar: with an explicit width
squeue cuts some fields and lets others (node lists) run over it. Fields in which a user's text may stand (job name,
comment) are never asked for; Slurm's reason, which may hold an administrator's text, comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from slurmtrain.core.jobid import JobId

SEPARATOR = "|"

# squeue -O names; ExcNodes is missing because it exists only since 24.05.
SQUEUE_FIELDS = (
    "JobID", "ArrayJobID", "ArrayTaskID", "HetJobID", "HetJobOffset", "UserID", "State", "RestartCnt", "Requeue",
    "NodeList", "NumNodes", "exit_code", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "PreemptTime",
    "TimeLimit", "ReqNodes", "Partition", "PriorityLong", "Dependency", "Reason",
)  # fmt: skip
SACCT_FIELDS = (
    "JobID", "JobIDRaw", "State", "ExitCode", "DerivedExitCode", "NodeList", "Submit", "Start", "End", "TimelimitRaw",
    "Reason",
)  # fmt: skip
SINFO_FIELDS = ("NodeList", "StateComplete", "Partition", "Features", "Reason")


def _long_format(fields: Sequence[str]) -> str:
    return ",".join(f"{name}:0{SEPARATOR}" for name in fields)


def build_squeue(job_id: JobId | None = None) -> list[str]:
    """All jobs of the calling user (filtered by slurmctld), or one job: two ids would fetch the whole table."""
    which = ["--me"] if job_id is None else ["-j", str(job_id)]
    return ["squeue", *which, "-h", "-r", "-t", "all", "-O", _long_format(SQUEUE_FIELDS)]


def build_squeue_all(job_ids: Iterable[JobId] = ()) -> list[str]:
    """Jobs of anybody, all of them without a list; fetches the whole table, for an administrator."""
    listed = ",".join(sorted({str(job_id.base) for job_id in job_ids}))
    which = ["-j", listed] if listed else []
    return ["squeue", *which, "-h", "-r", "-t", "all", "-O", _long_format(SQUEUE_FIELDS)]


def build_squeue_excluded(job_id: JobId) -> list[str]:
    return ["squeue", "-h", "-t", "all", "-j", str(job_id), "-o", "%x"]


def build_squeue_steps(job_id: JobId) -> list[str]:
    return ["squeue", "-s", "-h", "-j", str(job_id), "-O", f"StepID:0{SEPARATOR}"]


def build_sacct(job_ids: Iterable[JobId], since: datetime | None = None, *, federation: bool = False) -> list[str]:
    """Every execution with its steps (run with TZ=UTC). Without ``since`` a job list reaches back to the beginning.

    ``federation``: also those on other clusters of a federation.
    """
    window = [] if since is None else ["-S", f"{since.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}"]
    listed = ",".join(sorted({str(job_id) for job_id in job_ids}))
    where = ["--federation"] if federation else []
    return ["sacct", "-D", "-P", "-n", *where, "-j", listed, *window, "-o", ",".join(SACCT_FIELDS)]


def build_sinfo(expression: str = "") -> list[str]:
    which = ["-n", expression] if expression else []
    return ["sinfo", "-N", "-h", "-a", *which, "-O", _long_format(SINFO_FIELDS)]


def build_reservations() -> list[str]:
    return ["scontrol", "-o", "show", "reservation"]


def build_config() -> list[str]:
    return ["scontrol", "show", "config"]


def build_sbatch(script: Path, options: Sequence[str] = (), arguments: Sequence[str] = ()) -> list[str]:
    return ["sbatch", "--parsable", *options, _operand(script), *arguments]


def build_sbatch_test(script: Path) -> list[str]:
    return ["sbatch", "--test-only", _operand(script)]


def _operand(script: Path) -> str:
    text = str(script)
    return f"./{text}" if text.startswith("-") else text


def build_requeue(job_id: JobId, *, only_running: bool) -> list[str]:
    """``Incomplete`` makes slurmctld check, under its job lock, that the job is RUNNING or SUSPENDED."""
    return ["scontrol", "requeue", *(["Incomplete"] if only_running else []), str(job_id)]


# slurmd refuses a batch job whose credential was made in the second in which the earlier execution was told to end
# (slurm_cred.c: ctime <= revoked, whole seconds): the job then FAILs with exit code 1 and its script never runs.
MIN_START_DELAY_S = 2


def build_update(
    job_id: JobId, *, start_after: timedelta | None, start_at: datetime | None = None, exclude: str | None
) -> list[str]:
    """To be run with TZ=UTC: a moment is written in the client's zone."""
    changes = []
    if start_at is not None:
        changes.append(f"StartTime={start_at.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}")
    elif start_after is not None:
        changes.append(f"StartTime=now+{max(MIN_START_DELAY_S, round(start_after.total_seconds()))}")
    if exclude is not None:
        changes.append(f"ExcNodeList={exclude}")
    return ["scontrol", "update", f"JobId={job_id}", *changes]


def build_hold(job_id: JobId) -> list[str]:
    """A user hold even when root asks, so that the owner can release it."""
    return ["scontrol", "uhold", str(job_id)]


def build_release(job_id: JobId) -> list[str]:
    return ["scontrol", "release", str(job_id)]


def build_cancel(job_id: JobId) -> list[str]:
    return ["scancel", str(job_id)]


def build_signal_step(job_id: JobId, step: int | str, signal_name: str) -> list[str]:
    return ["scancel", "-s", signal_name, f"{job_id}.{step}"]


def build_companion_srun(
    node_counts: Sequence[int],
    command: Sequence[str],
    *,
    node: str = "",
    name: str = "companion",
    only: int | None = None,
) -> list[str]:
    """One small task on each node of the job, or on one, beside the training (``--overlap``) and never in its way.

    A companion that dies ends nobody (``--kill-on-bad-exit=0``), and none waits for another (``--wait=0``). A
    heterogeneous job has a number of nodes for each component: srun takes options and command for each. ``only`` is
    the component that is meant alone.
    """
    argv = ["srun"]
    where = [f"--nodelist={node}"] if node else []
    for component, nodes in enumerate(node_counts):
        if only is not None and component != only:
            continue
        if len(node_counts) > 1:
            argv += [*([":"] if component and only is None else []), f"--het-group={component}"]
        size = ["-N", str(nodes), "-n", str(nodes), *where, "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0"]
        argv += ["--overlap", *size, "--kill-on-bad-exit=0", "--wait=0", f"--job-name={name}", *command]
    return argv
