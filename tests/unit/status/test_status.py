"""Where a run stands: the journal joined with what a Slurm in memory says."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from made_runs import T0, MadeRun, Slurm, make_run

from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.jobid import parse_job_id
from slurmtrain.core.vocabulary import Stage
from slurmtrain.ops.pace import describe_pace
from slurmtrain.ops.status import RunStatus, read_status
from slurmtrain.store.publish import to_json
from slurmtrain.testing import FaultKind

KEYS = [
    "run_id", "name", "state", "stage", "job_id", "attempt", "launch", "nodes", "reason", "cause", "decision",
    "submitted_at", "started_at", "ended_at", "progress", "scene", "vocabulary",
]  # fmt: skip


def _status(run: MadeRun, slurm: Slurm | None, now: float = T0 + 100) -> RunStatus:
    return read_status([run.dir], slurm, now).rows[0]


def test_a_waiting_job_says_why_and_whether_waiting_helps(tmp_path: Path) -> None:
    slurm = Slurm(nodes=("n1",))
    first, second = make_run(tmp_path, "first"), make_run(tmp_path, "second")
    first.submitted(slurm)
    second.submitted(slurm)
    row = _status(second, slurm)
    assert row.state is RunState.INQUEUE
    assert row.waiting is not None
    assert row.waiting.helps is True
    job_id = parse_job_id(second.view.job_id)
    slurm.hold(job_id)
    held = _status(second, slurm)
    assert held.waiting is not None
    assert held.waiting.helps is None
    assert f"scontrol release {job_id}" in held.reason


def test_running_begins_when_every_node_has_reported(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path, nodes=2)
    job_id = run.submitted(slurm)
    assert _status(run, slurm).state is RunState.STARTING
    run.attempt(job_id, nodes="n[1-2]")
    run.launch(0, at=T0 + 50)
    nodes = run.dir.attempt(0).nodes
    (nodes / "n1.json").write_bytes(to_json({"node": "n1", "status": "here"}))
    row = _status(run, slurm, T0 + 60)
    assert (row.state, row.stage, row.nodes_reported, row.nodes) == (RunState.STARTING, Stage.STARTING, 1, ("n1", "n2"))
    assert _status(run, slurm, T0 + 500).state is RunState.RUNNING  # one silent companion does not hide a training
    (nodes / "n2.json").write_bytes(to_json({"node": "n2", "status": "here"}))
    row = _status(run, slurm, T0 + 60)
    assert (row.state, row.stage) == (RunState.RUNNING, Stage.TRAINING)


def test_without_companions_a_launch_means_running(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path, companion=False)
    run.attempt(run.submitted(slurm))
    run.launch(0, at=T0 + 50)
    assert _status(run, slurm, T0 + 51).state is RunState.RUNNING


def test_a_job_that_slurm_requeued_by_itself_waits_again(tmp_path: Path) -> None:
    slurm, run = Slurm(nodes=("n1",)), make_run(tmp_path)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.launch(0)
    slurm.fail_node("n1")
    slurm.advance(5)
    assert _status(run, slurm).state is RunState.INQUEUE
    slurm.restore_node("n1")
    slurm.advance(200)
    assert slurm.observe([job_id]).jobs[job_id].restart_count == 1
    row = _status(run, slurm)
    assert row.state is RunState.STARTING, "a new execution whose gate has written nothing yet"


def test_a_cancelled_job_does_not_have_the_cause_of_the_end_before(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path, companion=False)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.decided(0, Action.REQUEUE, RunState.PENDING, cause="preempted")
    run.attempt(job_id, 1)
    slurm.cancel(job_id)
    slurm.advance(60)
    row = _status(run, slurm)
    assert ("was cancelled" in row.reason, row.cause) == (True, "user_cancelled")


def test_a_cancelled_job_that_nobody_recorded_is_told(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path, companion=False)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.launch(0)
    slurm.cancel(job_id)
    slurm.advance(60)
    assert "was cancelled" in _status(run, slurm).reason
    slurm.advance(3600)
    row = _status(run, slurm)
    assert "no longer knows" in row.reason or "belongs to" in row.reason
    assert row.state is RunState.RUNNING, "not seen is not ended"


def test_when_slurm_is_down_the_journal_is_shown_and_the_trouble_told(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.submitted(slurm)
    slurm.inject(FaultKind.UNAVAILABLE, "observe")
    report = read_status([run.dir], slurm, T0 + 100)
    assert report.rows[0].state is RunState.INQUEUE
    assert "Unable to contact" in report.slurm_error


def test_one_question_for_all_runs_and_none_for_ended_ones(tmp_path: Path) -> None:
    slurm = Slurm()
    runs = [make_run(tmp_path, f"run-{number}") for number in range(20)]
    for run in runs:
        job_id = run.submitted(slurm)
        run.attempt(job_id)
    slurm.calls.clear()
    read_status([run.dir for run in runs], slurm, T0)
    assert [call.name for call in slurm.calls] == ["observe"]
    for run in runs:
        run.decided(0, Action.COMPLETE, RunState.COMPLETED, cause="no_failure")
    slurm.calls.clear()
    report = read_status([run.dir for run in runs], slurm, T0)
    assert slurm.calls == []
    assert {row.state for row in report.rows} == {RunState.COMPLETED}


def test_the_json_has_exactly_the_documented_keys(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.decided(0, Action.STOP, RunState.FAILED, cause="cuda_oom", reason="no retry can cure this")
    row = json.loads(json.dumps(_status(run, slurm).to_dict()))
    assert list(row) == KEYS
    assert (row["state"], row["cause"], row["decision"]) == ("Failed", "cuda_oom", "stop")
    assert row["submitted_at"].endswith("Z")
    assert row["vocabulary"]["sagemaker"] == {"primary": "Failed", "secondary": "Failed"}


def test_a_completed_run_has_no_cause(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.decided(0, Action.COMPLETE, RunState.COMPLETED, cause="no_failure")
    assert _status(run, slurm).to_dict()["cause"] is None


def test_an_unreadable_journal_is_a_row_with_damage(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    shutil.rmtree(run.dir.journal)
    run.dir.journal.write_text("a file in the place of the folder")
    row = _status(run, None)
    assert row.run_id == "train-1"
    assert any("journal" in line for line in row.damage)


def test_a_thousand_runs_in_seconds(tmp_path: Path) -> None:
    slurm = Slurm()
    runs = []
    for number in range(1000):
        run = make_run(tmp_path, f"run-{number:04d}")
        run.journal.append()
        runs.append(run)
    begun = time.monotonic()
    report = read_status([run.dir for run in runs], slurm, T0)
    assert len(report.rows) == 1000
    assert time.monotonic() - begun < 10


def test_a_running_training_tells_how_far_it_is(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    attempt = run.attempt(run.submitted(slurm))
    log = run.dir.log_file("1")
    log.write_text("an earlier launch: step 900/1000 loss 9.9\n")
    run.launch(attempt, log="logs/train-1.log", at=T0, offset=log.stat().st_size)
    assert _status(run, slurm).to_dict()["progress"] is None
    with log.open("a") as stream:
        stream.write("0: step 250/1000 loss 0.03125 epoch 2\n")
    os.utime(log, (T0 + 100, T0 + 100))
    row = _status(run, slurm)
    assert row.to_dict()["progress"] == {
        "step": 250, "target_step": 1000, "epoch": 2.0, "loss": 0.03125, "samples_per_s": None, "steps_per_s": 2.5,
        "told_at": T0 + 100, "expected_end": T0 + 400,
    }  # fmt: skip
    assert row.pace is not None
    end = time.strftime("%H:%M", time.localtime(T0 + 400))
    assert (
        describe_pace(row.pace, T0 + 100) == f"step 250 of 1000, epoch 2, loss 0.03125, 2.5 steps/s, ends about {end}"
    )
    with log.open("a") as stream:
        stream.write("0: step 260/1000 loss nan epoch 2\n")
    row = _status(run, slurm)
    assert row.pace is not None
    assert "step 260 of 1000, epoch 2, loss nan" in describe_pace(row.pace, T0 + 100)
    assert row.to_dict()["progress"]["loss"] is None
    run.decided(0, Action.STOP, RunState.FAILED, cause="cuda_oom", reason="no retry can cure this")
    assert _status(run, slurm).to_dict()["progress"] is None
