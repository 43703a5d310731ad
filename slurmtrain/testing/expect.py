"""Expectations of the contract suite; each failure says what was expected of which job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running, is_waiting
from slurmtrain.slurm.client import AccountingRecord, JobRecord
from slurmtrain.testing.memory_model import Behaviour
from slurmtrain.testing.stage import Stage, wait_for, wait_for_job

E = TypeVar("E", bound=Exception)
STUBBORN = Behaviour(ignores_term=True)  # COMPLETING lasts as long as KillWait
UNKNOWN = JobId(2_000_000_000)


def expect(true: object, what: str) -> None:
    if not true:
        raise AssertionError(what)


def expect_equal(actual: object, expected: object, what: str) -> None:
    expect(actual == expected, f"{what}: expected {expected!r}, got {actual!r}")


def expect_error(kind: type[E], call: Callable[[], object]) -> E:
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


def started(stage: Stage, job_id: JobId, *, restarts: int = 0) -> JobRecord:
    return wait_for_job(
        stage,
        job_id,
        lambda job: is_running(job.state) and job.restart_count == restarts,
        f"runs ({restarts} restarts)",
    )


def ended(stage: Stage, job_id: JobId, base: BaseState, timeout_s: float = 40) -> JobRecord:
    return wait_for_job(stage, job_id, lambda job: job.state.base is base and not job.state.flags, str(base), timeout_s)


def queued_again(stage: Stage, job_id: JobId, *, restarts: int = 1) -> JobRecord:
    return wait_for_job(
        stage, job_id, lambda job: is_waiting(job.state) and job.restart_count == restarts, "is back in the queue"
    )


def rows(stage: Stage, job_id: JobId, *words: str) -> list[AccountingRecord]:
    """The job's accounting rows as soon as they show these states."""

    def look() -> list[AccountingRecord] | None:
        found = stage.client.history([job_id])
        return found if [row.state.word for row in found] == list(words) else None

    def shown() -> str:
        return str([row.state.word for row in stage.client.history([job_id])])

    try:
        return wait_for(stage, look, 20, f"accounting shows {words} for job {job_id}")
    except AssertionError as error:
        raise AssertionError(f"{error}, but {shown()}") from None
