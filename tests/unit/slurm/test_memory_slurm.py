"""What the Slurm in memory offers beyond the contract: faults, hooks, time, other versions' quirks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, is_running
from slurmtrain.errors import SlurmBusyError, SlurmRefusedError, SlurmUnavailableError
from slurmtrain.testing import Behaviour, FaultKind, MemoryConfig, MemoryPartition, MemorySlurm


class Dead(BaseException):
    """The caller was killed."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/bash\n#SBATCH --requeue --time=1:00:00\n#SBATCH --signal=B:USR2@120\ntrue\n#SBATCH -N 9\n")
    return path


@pytest.fixture
def slurm() -> MemorySlurm:
    return MemorySlurm()


def started(slurm: MemorySlurm, script: Path, *options: str) -> JobId:
    job_id = slurm.submit(script, options=options)
    slurm.advance(1)
    assert is_running(slurm.observe([job_id]).jobs[job_id].state)
    return job_id


def state(slurm: MemorySlurm, job_id: JobId) -> str:
    return slurm.observe([job_id]).jobs[job_id].state.word


def test_nothing_starts_within_a_call(slurm: MemorySlurm, script: Path) -> None:
    job_id = slurm.submit(script)
    assert state(slurm, job_id) == "PENDING"
    slurm.advance(0.1)
    assert state(slurm, job_id) == "RUNNING"


def test_slurms_own_requeue_delay(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script)
    slurm.requeue(job_id, only_running=True)
    slurm.advance(1)
    begin = slurm.observe([job_id]).jobs[job_id].begin_time
    assert begin == slurm.clock() + timedelta(seconds=121)
    slurm.advance(120)
    assert state(slurm, job_id) == "PENDING"
    slurm.advance(1)
    assert state(slurm, job_id) == "RUNNING"


def test_a_start_time_that_passes_during_clean_up_is_replaced_by_slurms_delay(slurm: MemorySlurm, script: Path) -> None:
    slurm.behaviour = Behaviour(ignores_term=True)  # KillWait 30 s
    job_id = started(slurm, script)
    slurm.requeue(job_id, only_running=True)
    slurm.update_pending(job_id, start_after=timedelta(seconds=8))
    slurm.advance(30)
    assert slurm.observe([job_id]).jobs[job_id].begin_time == slurm.clock() + timedelta(seconds=121)


def test_unavailable_does_nothing_and_reply_lost_does_it(slurm: MemorySlurm, script: Path) -> None:
    slurm.inject(FaultKind.UNAVAILABLE, "submit")
    slurm.inject(FaultKind.REPLY_LOST, "submit", skip=1)
    with pytest.raises(SlurmUnavailableError, match="connect failure"):
        slurm.submit(script)
    assert not slurm.observe().jobs
    first = slurm.submit(script)
    with pytest.raises(SlurmUnavailableError, match="timed out"):
        slurm.submit(script)
    assert set(slurm.observe().jobs) == {first, JobId(first.base + 1)}
    slurm.inject(FaultKind.BUSY, times=2)
    for _ in range(2):
        with pytest.raises(SlurmBusyError):
            slurm.observe()
    assert slurm.observe().jobs


def test_a_caller_can_be_killed_before_and_after_each_call(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script)

    def die(name: str, when: str) -> None:
        if (name, when) == ("requeue", "after"):
            raise Dead

    slurm.on_call = die
    with pytest.raises(Dead):
        slurm.requeue(job_id, only_running=True)
    slurm.on_call = None
    assert slurm.observe([job_id]).jobs[job_id].restart_count == 1
    assert [call.name for call in slurm.calls[-2:]] == ["requeue", "observe"]


def test_the_warning_comes_early_and_the_end_at_the_tick(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script, "--time=5")
    began = slurm.job(job_id).start_time
    assert began is not None
    slurm.advance(400)
    warning, *_ = slurm.signals
    assert (warning.name, warning.target) == ("USR2", "batch")
    left = began + timedelta(minutes=5) - warning.at
    assert timedelta(seconds=120) <= left <= timedelta(seconds=180)
    end = slurm.observe([job_id]).jobs[job_id].end_time
    assert end is not None
    assert timedelta(minutes=5) <= end - began <= timedelta(minutes=5, seconds=30)
    assert state(slurm, job_id) == "TIMEOUT"


@pytest.mark.parametrize(
    ("version", "word", "restarts"), [((22, 5), "COMPLETED", 0), ((24, 5), "PENDING", 1), ((26, 5), "PENDING", 1)]
)
def test_leaving_within_the_grace_time(version: tuple[int, int], word: str, restarts: int, script: Path) -> None:
    slurm = MemorySlurm(nodes=["n1"], config=MemoryConfig(version=version))
    job_id = started(slurm, script, "-p", "graced", "--exclusive")
    slurm.submit(script, options=["-p", "urgent", "--exclusive"])
    slurm.advance(1)
    assert slurm.observe([job_id]).jobs[job_id].preempt_time is not None
    slurm.finish(job_id)
    slurm.advance(5)
    job = slurm.observe([job_id]).jobs[job_id]
    assert (job.state.word, job.restart_count) == (word, restarts)


def test_from_24_05_a_run_after_a_grace_time_that_ran_out_is_rerun_after_success(script: Path) -> None:
    """Slurm keeps its grace mark when it ends the job itself; the next run's success then counts as preempted."""
    slurm = MemorySlurm(nodes=["n1"], config=MemoryConfig(version=(24, 5), cred_expire=timedelta(seconds=5)))
    job_id = started(slurm, script, "-p", "graced", "--exclusive")
    urgent = slurm.submit(script, options=["-p", "urgent", "--exclusive"])
    slurm.advance(90)
    slurm.finish(urgent)
    slurm.advance(30)
    assert slurm.observe([job_id]).jobs[job_id].restart_count == 1
    assert state(slurm, job_id) == "RUNNING"
    slurm.finish(job_id)
    slurm.advance(30)
    assert slurm.observe([job_id]).jobs[job_id].restart_count == 2
    slurm.finish(job_id)
    slurm.advance(3)
    assert state(slurm, job_id) == "COMPLETED"


def test_a_lost_node_and_its_replacement(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script, "-N", "2")
    slurm.fail_node("n1")
    slurm.advance(130)
    job = slurm.observe([job_id]).jobs[job_id]
    assert (job.nodes, job.restart_count) == ("n[2-3]", 1)
    (lost,) = slurm.nodes("n1")
    assert lost.states == {"DOWN"}
    assert [row.state.word for row in slurm.history([job_id])] == ["NODE_FAIL", "RUNNING"]


def test_without_requeue_a_lost_node_is_the_end(script: Path) -> None:
    for version, code in (((22, 5), 0), ((24, 11), 1)):  # squeue takes the new exit code 1 for a signal
        slurm = MemorySlurm(config=MemoryConfig(version=version))
        job_id = started(slurm, script, "--no-requeue")
        slurm.fail_node("n1")
        slurm.advance(3)
        job = slurm.observe([job_id]).jobs[job_id]
        assert (job.state.base, job.exit_code, job.signal) == (BaseState.NODE_FAIL, 0, code or None)
        assert slurm.history([job_id])[0].exit_code == code


def test_excluding_a_node_that_is_asked_for_waits_for_ever(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script, "-w", "n2")
    slurm.requeue(job_id, only_running=True)
    slurm.update_pending(job_id, start_after=timedelta(seconds=4), exclude="n2")
    slurm.advance(3600)
    job = slurm.observe([job_id]).jobs[job_id]
    assert (job.state.word, job.reason) == ("PENDING", "BadConstraints")


def test_requeue_exit_codes_of_the_site(script: Path) -> None:
    config = MemoryConfig(requeue_exit=frozenset({42}), requeue_exit_hold=frozenset({43}))
    slurm = MemorySlurm(config=config)
    again, held = started(slurm, script), started(slurm, script)
    slurm.finish(again, 42)
    slurm.finish(held, 43)
    slurm.advance(200)
    assert (state(slurm, again), slurm.observe([again]).jobs[again].restart_count) == ("RUNNING", 1)
    assert state(slurm, held) == "SPECIAL_EXIT"
    slurm.release(held)
    slurm.advance(1)
    assert state(slurm, held) == "RUNNING"


def test_held_after_too_many_requeues_only_an_administrator_can_help(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script)
    slurm.hold_for_max_requeue(job_id)
    slurm.advance(5)
    job = slurm.observe([job_id]).jobs[job_id]
    assert (job.state.word, job.reason) == ("REQUEUE_HOLD", "JobHoldMaxRequeue")
    with pytest.raises(SlurmRefusedError, match="permission denied"):
        slurm.release(job_id)


def test_a_submission_limit(script: Path) -> None:
    slurm = MemorySlurm(config=MemoryConfig(max_submit_jobs=1))
    job_id = slurm.submit(script)
    with pytest.raises(SlurmBusyError, match="MaxSubmit"):
        slurm.submit(script)
    slurm.cancel(job_id)
    slurm.submit(script)


def test_a_partition_that_cancels_what_it_preempts(script: Path) -> None:
    partitions = [MemoryPartition("low", preempt_mode="CANCEL"), MemoryPartition("high", priority_tier=9)]
    slurm = MemorySlurm(nodes=["n1"], partitions=partitions)
    job_id = started(slurm, script, "--exclusive")
    slurm.submit(script, options=["-p", "high", "--exclusive"])
    slurm.advance(5)
    assert state(slurm, job_id) == "PREEMPTED"
    slurm.requeue(job_id, only_running=True)
    assert state(slurm, job_id) == "PREEMPTED"


def test_the_scripts_options_are_read_up_to_its_first_command(slurm: MemorySlurm, script: Path) -> None:
    job_id = started(slurm, script)
    job = slurm.observe([job_id]).jobs[job_id]
    assert (job.node_count, job.time_limit) == (1, timedelta(hours=1))


def test_the_clock_does_not_run_back(slurm: MemorySlurm) -> None:
    with pytest.raises(ValueError, match="cannot go back"):
        slurm.clock.advance(timedelta(seconds=-1))
