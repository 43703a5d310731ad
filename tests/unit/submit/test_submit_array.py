"""Submitting an array: all its runs appear, or nothing is left; each knows which task it is."""

# ruff: noqa: E501 - Slurm's texts
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from submit_support import Desk

from slurmtrain.core.array import ArrayTask
from slurmtrain.core.decision import RunState
from slurmtrain.core.run import fold
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmRefusedError, SlurmUnavailableError, SpecError, StoreError
from slurmtrain.ops import submit
from slurmtrain.ops.array_jobs import record_missing_jobs
from slurmtrain.ops.resubmit import resubmit
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import RUN_ID, RunDir, runs_of

BAD_ARRAY = "1 sbatch: error: Batch job submission failed: Invalid job array specification"
TIMED_OUT = "1 sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


def calls(desk: Desk) -> list[dict]:
    return [json.loads(line) for line in (desk.folder / "calls").read_text().splitlines()]


def test_one_sbatch_makes_one_run_for_each_task(desk: Desk) -> None:
    accepted = desk.submit_array(desk.prepare_array("array=1,4-6:2%2", "name=sweep"))
    group = accepted.group
    (call,) = calls(desk)
    assert call["argv"] == ["--parsable", str(group.batch_script), "0"]
    assert "#SBATCH --array=1,4-6:2%2\n" in call["script"]
    assert group.read_tasks() == (1, 4, 6)
    assert group.read_job_id() == "4711"
    assert [run.run_id for run in runs_of(desk.store)] == [f"{group.group_id}-{task}" for task in (1, 4, 6)]
    for run, task in zip(group.read_runs(), (1, 4, 6), strict=True):
        state = fold(read_journal(run.journal))
        assert (state.state, state.job_id) == (RunState.INQUEUE, f"4711_{task}")
        assert run.read_submissions() == {0: f"4711_{task}"}
        plan = run.read_plan()
        assert plan.array == ArrayTask(task, 3, 1, 6)
        assert plan.spec.array == str(task)
        assert {p.name for p in run.path.iterdir()} >= {
            "spec.yaml", "plan.json", "rules.json", "job.sbatch", "launch.sh", "agent.pyz", "logs", "attempts", "journal", "submissions",
        }  # fmt: skip
        assert run.agent.read_bytes() == (group.path / "agent.pyz").read_bytes()


def test_ids_of_runs_stay_within_their_length(desk: Desk) -> None:
    accepted = desk.submit_array(desk.prepare_array("array=4000000", f"name={'x' * 80}"))
    (run,) = accepted.group.read_runs()
    assert RUN_ID.fullmatch(run.run_id)


def test_a_task_is_submitted_again_as_an_array_of_one(desk: Desk) -> None:
    group = desk.submit_array(desk.prepare_array("array=0-7")).group
    run = group.run(3)
    desk.answers("0 4800")
    job_id = resubmit(run, desk.slurm(), JournalWriter(run.journal, "test"), "user", instead_of="4711_3")
    assert str(job_id) == "4800_3"
    assert run.read_submissions() == {0: "4711_3", 1: "4800_3"}
    script = calls(desk)[-1]["script"]
    assert "#SBATCH --array=3\n" in script
    assert f"ST_RUN_DIR={run.path}\n" in script
    again = resubmit(run, desk.slurm(), JournalWriter(run.journal, "other"), "watcher", instead_of="4711_3")
    assert again == job_id, "the same submission is not made twice"


def test_a_refused_array_leaves_nothing(desk: Desk) -> None:
    desk.answers(BAD_ARRAY)
    with pytest.raises(SlurmRefusedError, match=r"nothing was submitted: .*Invalid job array specification"):
        desk.submit_array(desk.prepare_array("array=0-3"))
    assert desk.leftovers() == ["groups", "runs"]


def test_a_lost_reply_keeps_all_runs(desk: Desk) -> None:
    desk.answers(TIMED_OUT)
    prepared = desk.prepare_array("array=0-3")
    with pytest.raises(SlurmUnavailableError, match=f"The array {prepared.group.group_id} is kept"):
        desk.submit_array(prepared)
    assert len(runs_of(desk.store)) == 4
    assert all("Socket timed out" in fold(read_journal(run.journal)).uncertain for run in runs_of(desk.store))


def test_a_store_that_fails_in_the_middle_leaves_nothing(desk: Desk) -> None:
    prepared = desk.prepare_array("array=0-3")
    prepared.group.run(2).path.mkdir(parents=True)  # its place is taken
    with pytest.raises(StoreError, match="exists already"):
        desk.submit_array(prepared)
    assert [path for path in desk.leftovers() if prepared.group.group_id in path and "-2" not in path] == []
    assert not (desk.folder / "calls").exists()


def test_where_files_cannot_be_linked_they_are_copied(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    group = desk.submit_array(desk.prepare_array("array=0-1")).group
    run = group.run(1)
    assert run.agent.stat().st_nlink == 1
    assert os.access(run.agent, os.X_OK)


def test_a_shared_checkpoint_directory_needs_the_tasks_number(desk: Desk, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"checkpoint\.dir: all tasks of the array would write to .*%a"):
        desk.prepare_array("array=0-3", f"checkpoint.dir={tmp_path}/all")
    prepared = desk.prepare_array("array=0-3", f"checkpoint.dir={tmp_path}/%a")
    assert [run.resolved.spec.checkpoint.dir for run in prepared.runs] == [f"{tmp_path}/{task}" for task in range(4)]
    assert f"st_checkpoint_dir={tmp_path}/2\n" in prepared.runs[2].scripts.launch


@pytest.mark.parametrize("array", ["x", "3-1", "0-3%0", "0-9999999"])
def test_what_is_no_array_is_said_with_its_key(desk: Desk, array: str) -> None:
    with pytest.raises(SpecError, match="array"):
        desk.prepare_array(f"array={array}")


def test_a_spec_without_an_array_has_none() -> None:
    assert Spec(command=("x",)).array is None


def test_a_submitter_that_died_after_sbatchs_answer_is_mended_by_the_watcher(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = submit._record_job

    def die_at_the_third(run: RunDir, *more: object) -> list[str]:
        if not run.run_id.endswith(("-0", "-1")):
            raise KeyboardInterrupt
        return record(run, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(submit, "_record_job", die_at_the_third)
    prepared = desk.prepare_array("array=0-3")
    with pytest.raises(KeyboardInterrupt):
        desk.submit_array(prepared)
    group = prepared.group
    assert group.run(3).read_submissions() == {}
    assert record_missing_jobs(group) == [f"{group.group_id}-2", f"{group.group_id}-3"]
    assert record_missing_jobs(group) == []
    for task in range(4):
        run = group.run(task)
        assert run.read_submissions() == {0: f"4711_{task}"}
        assert fold(read_journal(run.journal)).job_id == f"4711_{task}"
