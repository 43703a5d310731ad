"""Traces: what Slurm showed of one job during a scenario, on a real cluster and in memory.

``tests/record_traces.py`` records the scenarios on a real cluster into ``tests/data/slurm/<version>/traces``; a unit
test plays them in memory and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running, is_waiting
from slurmtrain.slurm.client import AccountingRecord, JobRecord, SlurmClient
from slurmtrain.testing.memory_model import Behaviour
from slurmtrain.testing.stage import OBEDIENT, Stage, wait_for_job

Look = dict[str, Any]
STEP_S = 0.1
GONE: Look = {"state": "GONE"}


def describe(record: JobRecord | None) -> Look:
    """What a look shows, without clock times and node names."""
    if record is None:
        return dict(GONE)
    return {
        "state": record.state.word,
        "reason": record.reason,
        "restarts": record.restart_count,
        "nodes": bool(record.nodes),
        "exit_code": record.exit_code,
        "signal": record.signal,
        "preempting": record.preempt_time is not None,
        "begin": record.begin_time is not None,
        "requeue": record.requeue,
    }


def describe_row(row: AccountingRecord) -> Look:
    return {
        "state": row.state.word,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "nodes": bool(row.nodes),
        "started": row.start_time is not None,
        "ended": row.end_time is not None,
        "cancelled": row.cancelled_by is not None,
        "steps": sorted(step.name for step in row.steps),
    }


class RecordingStage:
    """A stage that writes down every change of the first job it submitted while time passes."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.job_id: JobId | None = None
        self.looks: list[Look] = []

    @property
    def client(self) -> SlurmClient:
        return self._stage.client

    @property
    def nodes(self) -> Sequence[str]:
        return self._stage.nodes

    def partition(self, kind: str) -> str:
        return self._stage.partition(kind)

    def submit(self, *options: str, behaviour: Behaviour = OBEDIENT) -> JobId:
        job_id = self._stage.submit(*options, behaviour=behaviour)
        self.job_id = self.job_id or job_id
        self.look()
        return job_id

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        self._stage.finish(job_id, exit_code, signal)

    def cancel_as_root(self, job_id: JobId) -> None:
        self._stage.cancel_as_root(job_id)

    def fail_node(self, name: str) -> None:
        self._stage.fail_node(name)

    def drain_node(self, name: str) -> None:
        self._stage.drain_node(name)

    def restore_node(self, name: str) -> None:
        self._stage.restore_node(name)

    def pause(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / STEP_S))):
            self._stage.pause(STEP_S)
            self.look()

    def look(self) -> None:
        if self.job_id is None:
            return
        seen = describe(self.client.observe([self.job_id]).jobs.get(self.job_id))
        if not self.looks or self.looks[-1] != seen:
            self.looks.append(seen)


def record(stage: Stage, scenario: Callable[[Stage], None]) -> dict[str, Any]:
    """Play a scenario; its looks, and the job's accounting rows a little later."""
    recording = RecordingStage(stage)
    scenario(recording)
    recording.pause(2)
    assert recording.job_id is not None  # noqa: S101 - every scenario submits
    rows = [describe_row(row) for row in stage.client.history([recording.job_id])]
    return {"looks": recording.looks, "rows": rows}


# -- scenarios -------------------------------------------------------------------------------------------------------

STUBBORN = Behaviour(ignores_term=True)


def _until(stage: Stage, job_id: JobId, base: BaseState, timeout_s: float = 120) -> None:
    wait_for_job(stage, job_id, lambda job: job.state.base is base and not job.state.flags, base.value, timeout_s)


def _running(stage: Stage, job_id: JobId, restarts: int = 0) -> None:
    wait_for_job(
        stage, job_id, lambda job: is_running(job.state) and job.restart_count == restarts, "runs", timeout_s=120
    )
    stage.pause(1.5)  # the script has started


def _waiting(stage: Stage, job_id: JobId, restarts: int = 1) -> None:
    wait_for_job(stage, job_id, lambda job: is_waiting(job.state) and job.restart_count == restarts, "waits")


def completes(stage: Stage) -> None:
    job_id = stage.submit()
    _running(stage, job_id)
    stage.finish(job_id)
    _until(stage, job_id, BaseState.COMPLETED)


def fails(stage: Stage) -> None:
    job_id = stage.submit(behaviour=Behaviour(step=True))
    _running(stage, job_id)
    stage.finish(job_id, exit_code=7)
    _until(stage, job_id, BaseState.FAILED)


def dies_of_a_signal(stage: Stage) -> None:
    job_id = stage.submit()
    _running(stage, job_id)
    stage.finish(job_id, signal=9)
    _until(stage, job_id, BaseState.FAILED)


def cancelled_while_held(stage: Stage) -> None:
    job_id = stage.submit("--hold")
    stage.pause(1)
    stage.client.cancel(job_id)
    _until(stage, job_id, BaseState.CANCELLED)


def cancelled_while_running(stage: Stage) -> None:
    job_id = stage.submit(behaviour=STUBBORN)
    _running(stage, job_id)
    stage.client.cancel(job_id)
    _until(stage, job_id, BaseState.CANCELLED)


def requeued(stage: Stage) -> None:
    job_id = stage.submit(behaviour=STUBBORN)
    _running(stage, job_id)
    stage.client.requeue(job_id, only_running=True)
    _running(stage, job_id, restarts=1)
    stage.finish(job_id)
    _until(stage, job_id, BaseState.COMPLETED)


def requeued_and_cancelled_at_once(stage: Stage) -> None:
    job_id = stage.submit(behaviour=STUBBORN)
    _running(stage, job_id)
    stage.client.requeue(job_id, only_running=True)
    stage.pause(1)
    stage.client.cancel(job_id)
    _until(stage, job_id, BaseState.CANCELLED)


def requeued_and_cancelled_while_waiting(stage: Stage) -> None:
    job_id = stage.submit()
    _running(stage, job_id)
    stage.client.requeue(job_id, only_running=True)
    _waiting(stage, job_id)
    stage.client.cancel(job_id)
    _until(stage, job_id, BaseState.CANCELLED)


def cancelled_and_revived(stage: Stage) -> None:
    job_id = stage.submit(behaviour=STUBBORN)
    _running(stage, job_id)
    stage.client.cancel(job_id)
    stage.pause(1)
    stage.client.requeue(job_id, only_running=False)
    _running(stage, job_id, restarts=1)
    stage.finish(job_id)
    _until(stage, job_id, BaseState.COMPLETED)


def failed_and_revived(stage: Stage) -> None:
    job_id = stage.submit()
    _running(stage, job_id)
    stage.finish(job_id, exit_code=7)
    _until(stage, job_id, BaseState.FAILED)
    stage.client.requeue(job_id, only_running=False)
    _running(stage, job_id, restarts=1)
    stage.finish(job_id)
    _until(stage, job_id, BaseState.COMPLETED)


def held_and_released(stage: Stage) -> None:
    job_id = stage.submit("--hold")
    stage.pause(1)
    stage.client.release(job_id)
    _running(stage, job_id)
    stage.finish(job_id)
    _until(stage, job_id, BaseState.COMPLETED)


def _urgent(stage: Stage) -> None:
    stage.submit("-p", stage.partition("urgent"), "-w", stage.nodes[0], "--exclusive")


def preempted(stage: Stage) -> None:
    job_id = stage.submit("-w", stage.nodes[0], "--exclusive")
    _running(stage, job_id)
    _urgent(stage)
    _waiting(stage, job_id)


def preempted_for_good(stage: Stage) -> None:
    job_id = stage.submit("-w", stage.nodes[0], "--exclusive", "--no-requeue")
    _running(stage, job_id)
    _urgent(stage)
    _until(stage, job_id, BaseState.PREEMPTED)


def leaves_within_its_grace_time(stage: Stage) -> None:
    job_id = stage.submit("-p", stage.partition("graced"), "-w", stage.nodes[0], "--exclusive")
    _running(stage, job_id)
    _urgent(stage)
    wait_for_job(stage, job_id, lambda job: job.preempt_time is not None, "is being preempted")
    stage.pause(2)
    stage.finish(job_id)
    wait_for_job(stage, job_id, lambda job: not is_running(job.state) and not job.state.flags, "left")


def stays_through_its_grace_time(stage: Stage) -> None:
    job_id = stage.submit("-p", stage.partition("graced"), "-w", stage.nodes[0], "--exclusive", behaviour=STUBBORN)
    _running(stage, job_id)
    _urgent(stage)
    wait_for_job(stage, job_id, lambda job: is_waiting(job.state) and job.restart_count == 1, "waits", timeout_s=120)


def reaches_its_time_limit(stage: Stage) -> None:
    job_id = stage.submit("-t", "1", behaviour=STUBBORN)
    _running(stage, job_id)
    _until(stage, job_id, BaseState.TIMEOUT, timeout_s=180)


def loses_its_node(stage: Stage) -> None:
    job_id = stage.submit("-w", stage.nodes[1])
    _running(stage, job_id)
    stage.fail_node(stage.nodes[1])
    _waiting(stage, job_id)
    stage.restore_node(stage.nodes[1])


def loses_its_node_for_good(stage: Stage) -> None:
    job_id = stage.submit("-w", stage.nodes[1], "--no-requeue")
    _running(stage, job_id)
    stage.fail_node(stage.nodes[1])
    _until(stage, job_id, BaseState.NODE_FAIL)
    stage.restore_node(stage.nodes[1])


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    scenario.__name__: scenario
    for scenario in (
        completes, fails, dies_of_a_signal, cancelled_while_held, cancelled_while_running, requeued,
        requeued_and_cancelled_at_once, requeued_and_cancelled_while_waiting, cancelled_and_revived, failed_and_revived,
        held_and_released, preempted, preempted_for_good, leaves_within_its_grace_time, stays_through_its_grace_time,
        reaches_its_time_limit, loses_its_node, loses_its_node_for_good,
    )
}  # fmt: skip
