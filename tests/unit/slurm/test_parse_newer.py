"""Real output of Slurm 25.11 for the same jobs as in test_parse.py: the same columns, a few other words."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState
from slurmtrain.slurm import parse
from slurmtrain.slurm.client import AccountingRecord, JobRecord

DATA = Path(__file__).parents[2] / "data" / "slurm" / "25.11"


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def jobs() -> dict[JobId, JobRecord]:
    return {record.job_id: record for record in parse.parse_squeue(text("squeue.txt"))}


@pytest.fixture(scope="module")
def rows() -> dict[JobId, AccountingRecord]:
    return {record.job_id: record for record in reversed(parse.parse_sacct(text("sacct.txt")))}  # the first of each


def test_every_row_is_read(jobs: dict[JobId, JobRecord]) -> None:
    assert len(jobs) == len(text("squeue.txt").splitlines())


def test_how_jobs_ended(jobs: dict[JobId, JobRecord], rows: dict[JobId, AccountingRecord]) -> None:
    seen = {number: (jobs[JobId(number)].exit_code, jobs[JobId(number)].signal) for number in (157, 158, 159)}
    assert seen == {157: (7, None), 158: (0, 9), 159: (137, None)}
    assert jobs[JobId(158)].reason == "RaisedSignal:9(Killed)"
    assert (rows[JobId(159)].exit_code, rows[JobId(159)].signal) == (137, None)  # up to 25.05 this was 9


def test_cancelled_and_requeued_while_completing(jobs: dict[JobId, JobRecord]) -> None:
    assert (jobs[JobId(166)].state.word, jobs[JobId(166)].restart_count) == ("COMPLETING", 0)
    assert (jobs[JobId(167)].state.word, jobs[JobId(167)].restart_count) == ("COMPLETING", 1)


def test_arrays_and_het_jobs(jobs: dict[JobId, JobRecord], rows: dict[JobId, AccountingRecord]) -> None:
    assert {job_id.array_task for job_id in jobs if job_id.base == 156} == {0, 1, 2, 3}
    assert {JobId(160), JobId(160, None, 1)} <= set(jobs) & set(rows)


def test_executions(rows: dict[JobId, AccountingRecord]) -> None:
    states = [record.state.word for record in parse.parse_sacct(text("sacct.txt")) if record.job_id == JobId(167)]
    assert states == ["REQUEUED", "RUNNING"]
    assert (rows[JobId(166)].state.base, rows[JobId(166)].cancelled_by) == (BaseState.CANCELLED, 4242)
    assert rows[JobId(168)].nodes == "m[1-3]"


def test_nodes_and_configuration() -> None:
    nodes = {node.name: node for node in parse.parse_sinfo(text("sinfo.txt"))}
    assert nodes["m3"].states == {"MIXED", "COMPLETING", "PLANNED"}
    assert (nodes["m4"].states, nodes["m4"].reason) == ({"IDLE", "DRAIN"}, "bad | fan")
    can = parse.parse_config(text("config.txt"))
    assert (can.version, can.accounting, can.requeue_delay.total_seconds()) == ((25, 11), True, 6)
