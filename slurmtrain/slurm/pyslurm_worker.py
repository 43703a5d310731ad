"""The child process of ``PySlurmClient``: one JSON line in, one JSON line out, then the end.

A program of its own, importing nothing of slurmtrain: pyslurm holds the interpreter's lock while it waits for
slurmctld, and libslurm ends the process (``fatal()``) when it does not like slurm.conf. Checked against pyslurm 25.11;
the names used here are compared with its sources by a test.

The answer's rows have the field names and the texts of squeue and sinfo, so that one parser reads both.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its parse.py and client.py are not for pyslurm's imports

import json
from collections.abc import Callable
from typing import Any

MARK = "slurmtrain-pyslurm "
Row = dict[str, str]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _minutes(value: Any) -> str:
    return "UNLIMITED" if value is None else f"{value}:00"


def _array_task(job: Any) -> int | None:
    """pyslurm 25.11 takes task 0 for "none": a record of an array without a task and without waiting ones is task 0."""
    if job.array_id and job.array_task_id is None and not job.array_tasks_waiting:
        return 0
    task: int | None = job.array_task_id
    return task


def _job_row(job: Any) -> Row:
    return {
        "JobID": _text(job.id),
        "ArrayJobID": _text(job.array_id or job.id),
        "ArrayTaskID": _text(_array_task(job)),
        "HetJobID": _text(job.heterogeneous_id or None),
        "HetJobOffset": _text(job.heterogeneous_offset if job.heterogeneous_id else None),
        "UserID": _text(job.user_id),
        "State": _text(job.state),
        "RestartCnt": _text(job.requeue_count),
        "Requeue": "1" if job.is_requeueable else "0",
        "NodeList": _text(job.allocated_nodes),
        "NumNodes": _text(job.num_nodes),
        "exit_code": f"{job.exit_code}:{job.exit_code_signal}",
        "SubmitTime": _text(job.submit_time),
        "EligibleTime": _text(job.eligible_time),
        "StartTime": _text(job.start_time),
        "EndTime": _text(job.end_time),
        "PreemptTime": _text(job.preempt_time),
        "TimeLimit": _minutes(job.time_limit),
        "ReqNodes": _text(job.required_nodes),
        "Partition": _text(job.partition),
        "PriorityLong": _text(job.priority),
        "Dependency": "",  # pyslurm takes it apart; its shape is its own
        "Reason": _text(job.state_reason),
        "waiting_tasks": _text(job.array_tasks_waiting),
        "ExcNodes": _text(job.excluded_nodes),
    }


def load_jobs(pyslurm: Any, *, user_id: int | None) -> list[Row]:
    """All jobs, or those of one user. libslurm has no filter here: the whole table travels."""
    jobs = pyslurm.Jobs.load().values()
    return [_job_row(job) for job in jobs if user_id is None or job.user_id == user_id]


def load_nodes(pyslurm: Any) -> list[Row]:
    return [
        {
            "NodeList": _text(node.name),
            "StateComplete": _text(node.state),
            "Partition": _text(partition),
            "Features": ",".join(node.available_features or ()),
            "Reason": _text(node.reason),
        }
        for node in pyslurm.Nodes.load().values()
        for partition in (node.partitions or [""])
    ]


def load_steps(pyslurm: Any, *, raw_job_id: int) -> list[str]:
    return [str(step) for step in pyslurm.JobSteps.load(raw_job_id)]


def load_config(pyslurm: Any) -> Row:
    from pyslurm.core.slurmctld.config import Config

    config = Config.load()
    scheduler = config.scheduler_parameters or {}
    return {
        "SLURM_VERSION": _text(config.version),
        "AccountingStorageType": _text(config.accounting_storage_type),
        "MinJobAge": f"{config.min_job_age} sec",
        "KillWait": f"{config.kill_wait_time} sec",
        "JobRequeue": "1" if config.job_requeue else "0",
        "PreemptType": _text(config.preempt_type),
        "PreemptMode": _text(getattr(config, "preempt_mode", None)),
        "ClusterName": _text(config.cluster_name),
        "RequeueExit": _text(config.requeue_exit),
        "RequeueExitHold": _text(config.requeue_exit_hold),
        "AuthInfo": ",".join(config.auth_info or []),
        "SchedulerParameters": ",".join(f"{name}={value}" for name, value in scheduler.items()),
    }


class CompoundJobError(Exception):
    """An array or a het job: libslurm's calls by number would reach one part of it only."""


def _single(pyslurm: Any, raw_job_id: int) -> Any:
    job = pyslurm.Job.load(raw_job_id)
    if job.array_id or job.heterogeneous_id:
        raise CompoundJobError(str(raw_job_id))
    return job


def requeue(pyslurm: Any, *, raw_job_id: int) -> None:
    """Without a condition: pyslurm cannot ask for ``Incomplete``."""
    _single(pyslurm, raw_job_id).requeue()


def update(pyslurm: Any, *, raw_job_id: int, begin_time: int | None, excluded: list[str] | None) -> None:
    job = _single(pyslurm, raw_job_id)
    job.modify(pyslurm.JobSubmitDescription(begin_time=begin_time, excluded_nodes=excluded))


def release(pyslurm: Any, *, raw_job_id: int) -> None:
    _single(pyslurm, raw_job_id).release()


def cancel(pyslurm: Any, *, raw_job_id: int) -> None:
    _single(pyslurm, raw_job_id).cancel()


CALLS: dict[str, Callable[..., Any]] = {
    call.__name__: call
    for call in (
        load_jobs, load_nodes, load_steps, load_config, requeue, update, release, cancel,
    )
}  # fmt: skip


def answer(line: str) -> dict[str, Any]:
    """``{"value": …}``, or ``{"error": text, "kind": "missing" | "import" | "compound" | "slurm" | "worker"}``."""
    request = json.loads(line)
    try:
        import pyslurm
    except Exception as exc:  # noqa: BLE001 - a broken build raises whatever it likes
        missing = isinstance(exc, ModuleNotFoundError) and exc.name == "pyslurm"
        return {"error": str(exc), "kind": "missing" if missing else "import"}
    try:
        return {"value": CALLS[request.pop("call")](pyslurm, **request)}
    except CompoundJobError as exc:
        return {"error": str(exc), "kind": "compound"}
    except pyslurm.PyslurmError as exc:
        return {"error": str(exc), "kind": "slurm"}
    except Exception as exc:  # noqa: BLE001 - an API that changed; the parent says so in one sentence
        return {"error": f"{type(exc).__name__}: {exc}", "kind": "worker"}


def main() -> None:
    reply = answer(sys.stdin.readline())
    sys.stdout.write(f"\n{MARK}{json.dumps(reply)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
