"""The stages of an attempt: real bash, the Slurm in memory; asserted is what the scripts themselves wrote down."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_support import Scene

from slurmtrain.agent import stages as module
from slurmtrain.agent.gate import Admitted, TurnedAway, pass_gate
from slurmtrain.agent.stages import Outlook, Stages
from slurmtrain.agent.stops import StopReason
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.policy import decide_upload
from slurmtrain.core.run import fold
from slurmtrain.core.spec import Retry, Spec, StageIn, StageOut, spec_to_dict
from slurmtrain.ops.requeued import judge_ended_attempt
from slurmtrain.store.journal import read_journal


class Staging:
    """One attempt with stages whose scripts the test writes. ``stop`` and ``ended`` are what the launch loop sees."""

    def __init__(self, root: Path, **spec: Any) -> None:
        self.spec = Spec(command=("x",), **spec)
        self.scene = Scene(root, self.spec)
        self.record = self.scene.claim()
        self.root = root
        self.stop: StopReason | None = None
        self.pauses: list[int] = []
        self.watch = SimpleNamespace(
            check=lambda: self.stop, ended_by_slurm=False, signalled=False, seconds_to_next_look=lambda: 0.05
        )
        self.fence = SimpleNamespace(closed=False)
        wake = SimpleNamespace(sleep=time.sleep)
        outlook = Outlook(self.watch, self.fence, wake, self._pause, set)  # type: ignore[arg-type]
        env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "999999999", "SLURM_PROCID": "0"}
        scene = self.scene
        self.stages = Stages(scene.job, scene.attempt, scene.slurm, self.record, env, outlook)

    def _pause(self, decision: Decision) -> Decision:
        self.pauses.append(decision.delay_s)
        return decision

    def script(self, stage: str, text: str) -> None:
        head = f'echo "$SLURMTRAIN_STAGE $SLURMTRAIN_RESULT" >>{self.root}/ran\n'
        self.scene.run.stage_script(stage).write_text(f"{head}{text}\n")

    def ran(self) -> list[str]:
        path = self.root / "ran"
        return [line.strip() for line in path.read_text().splitlines()] if path.exists() else []

    def events(self) -> list[Any]:
        found = read_journal(self.scene.run.journal)
        return [event for event in found if event.kind in {"stage_started", "stage_ended"}]


IN, OUT = StageIn(run=("x",)), StageOut(run=("x",))


def test_a_stage_in_is_done_once_in_an_attempt(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_in=IN)
    staging.script("stage_in", "exit 0")
    assert staging.stages.bring_in().ok
    assert staging.stages.bring_in().ok, "a second agent of the same attempt"
    assert staging.ran() == ["stage_in"]


def test_a_run_without_stages_starts_nothing(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    assert staging.stages.bring_in().ok
    staging.stages.take_away_after(Decision(Action.STOP, RunState.FAILED, "x", "y"))
    assert staging.events() == []


def test_two_more_tries_and_then_the_ladder(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_in=IN)
    staging.script("stage_in", "echo 'curl: (6) Could not resolve host: data.example.org'; exit 6")
    staged = staging.stages.bring_in()
    assert staging.ran() == ["stage_in"] * 3
    assert staging.pauses == [5, 30]
    assert staged.decision is not None
    assert staged.decision.action is Action.REQUEUE
    assert "stage_in failed with exit code 6" in staged.decision.reason
    state = fold(read_journal(staging.scene.run.journal))
    assert state.attempts[0].launches == (), "it counts as no launch"
    assert state.attempts[0].stage == ""


def test_as_few_tries_as_the_person_wants(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_in=IN, retry=Retry(in_place=0))
    staging.script("stage_in", "exit 1")
    assert not staging.stages.bring_in().ok
    assert staging.ran() == ["stage_in"]


def test_what_no_retry_cures_is_not_tried_again(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_in=IN)
    staging.script("stage_in", "exit 93")
    staged = staging.stages.bring_in()
    assert staged.decision is not None
    assert (staged.decision.action, staged.exit_code) == (Action.STOP, 93)
    assert staging.ran() == ["stage_in"]


def test_a_stage_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_in=StageIn(run=("x",), time_limit_s=1))
    staging.script("stage_in", f"trap '' TERM; sleep 300 & echo $! >>{tmp_path}/pids; wait; wait")
    module_grace, module._GRACE_S = module._GRACE_S, 0.5
    try:
        staged = staging.stages.bring_in()
    finally:
        module._GRACE_S = module_grace
    assert staged.exit_code == module.TIMED_OUT
    assert staged.decision is not None
    assert "longer than its time limit of 1 s" in staged.decision.reason
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and _alive(pid)]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("reason", "action"), [("user", Action.STOP), ("time_limit", Action.REQUEUE), ("drain", Action.REQUEUE)]
)
def test_a_reason_to_stop_ends_a_stage_in_at_once(tmp_path: Path, reason: str, action: Action) -> None:
    staging = Staging(tmp_path, stage_in=IN)
    staging.script("stage_in", "sleep 300")
    staging.stop = StopReason(reason, time.time() + 900)
    staged = staging.stages.bring_in()
    assert staged.decision is not None
    assert (staged.decision.action, staged.decision.budget) == (action, "none")


def test_an_upload_has_until_the_last_moment(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_out=OUT)
    staging.script("stage_out", "sleep 1")
    staging.stop = StopReason("time_limit", time.time() + 60)
    assert staging.stages.take_away().ok
    assert not staging.scene.run.misses_upload(staging.spec)
    staging.script("stage_out", "sleep 300")
    staging.stop = StopReason("time_limit", time.time() + 1)
    staged = staging.stages.take_away()
    assert staged.decision is not None
    assert (staged.decision.action, staged.decision.budget) == (Action.REQUEUE, "none")


@pytest.mark.parametrize("end", ["ended_by_slurm", "closed"])
def test_nothing_is_decided_about_a_job_that_slurm_took_away(tmp_path: Path, end: str) -> None:
    staging = Staging(tmp_path, stage_in=IN)
    staging.script("stage_in", "sleep 300")
    setattr(staging.watch if end == "ended_by_slurm" else staging.fence, end, True)
    staged = staging.stages.bring_in()
    assert (staged.ok, staged.decision) == (False, None)
    assert staged.exit_code != 0


def test_a_failed_upload_holds_the_run(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_out=OUT)
    staging.script("stage_out", "echo 'No space left on device' >&2; exit 1")
    staged = staging.stages.take_away()
    assert staged.decision is not None
    assert (staged.decision.action, staged.decision.state) == (Action.HOLD, RunState.HELD)
    assert "the training has finished" in staged.decision.reason
    assert "slurmtrain release run-1" in staged.decision.reason
    assert staging.scene.run.misses_upload(staging.spec)


def test_results_of_a_failure_are_taken_away_once_if_wanted(tmp_path: Path) -> None:
    staging = Staging(tmp_path, stage_out=StageOut(run=("x",), after_failure=True))
    staging.script("stage_out", "exit 1")
    failed = Decision(Action.REQUEUE, RunState.PENDING, "native_crash", "why", "program")
    staging.stages.take_away_after(failed)
    assert staging.ran() == ["stage_out failed"]
    for other in (
        Decision(Action.REQUEUE, RunState.PENDING, "time_limit", "why"),
        Decision(Action.STOP, RunState.STOPPED, "user_cancelled", "why"),
    ):
        staging.stages.take_away_after(other)
    assert staging.ran() == ["stage_out failed"]
    assert staging.scene.run.misses_upload(staging.spec)


def test_the_gate_lets_a_finished_training_in_for_its_upload_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Spec(command=("x",), stage_out=OUT))
    scene.run.mark_done(0)
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), Admitted)
    scene.run.uploaded_file.touch()
    assert isinstance(pass_gate(scene.job, scene.slurm, scene.journal), TurnedAway)


@pytest.mark.parametrize("said_done", [True, False])
def test_a_script_killed_in_mid_upload_is_requeued_for_the_upload(tmp_path: Path, said_done: bool) -> None:
    """Also where the agent died before it could say that the training has finished."""
    spec = Spec(command=("x",), stage_out=OUT)
    scene = Scene(tmp_path, spec)
    record = scene.claim()
    record.launch_started(0, "", 0, None)
    record.launch_ended(
        0, exit_code=0, duration_s=1, stop_reason=None, progress=None, done=False, rank_exits=[], log_end=0
    )
    if said_done:
        scene.run.mark_done(0)
    state = fold(read_journal(scene.run.journal))
    judged = judge_ended_attempt(scene.run, spec, scene.attempt, None, state, "FAILED", 137)
    assert (judged.decision.action, judged.decision.budget) == (Action.REQUEUE, "infrastructure")
    assert "stage_out was cut off" in judged.decision.reason
    assert scene.run.is_done()
    none = decide_upload(state, "node_fail", dataclasses.replace(spec, retry=Retry(infrastructure=0)))
    assert none.action is Action.HOLD


def test_the_plain_form_holds_the_stages() -> None:
    spec = Spec(command=("x",), stage_in=StageIn(run=("a",), on="each_node"), stage_out=OUT)
    assert json.loads(json.dumps(spec_to_dict(spec)))["stage_in"]["on"] == "each_node"
