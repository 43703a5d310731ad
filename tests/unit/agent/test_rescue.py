"""The rescue job against the Slurm in memory: it recovers what nobody decided, and nothing else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from agent_support import Scene

from slurmtrain.agent import rescue as module
from slurmtrain.agent.rescue import run_rescue
from slurmtrain.config.checks import check_spec
from slurmtrain.config.problems import Problems
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.events import AttemptStarted, LaunchStarted
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Resources, Spec
from slurmtrain.errors import NotFoundError
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.render.rescue import build_rescue_script
from slurmtrain.store.journal import read_journal
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import FaultKind

SPEC = Spec(command=("x",), rescue=True)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A run whose job runs and whose agent has begun a launch."""
    made = Scene(tmp_path, SPEC)
    made.run.rescue_script.write_text("#!/bin/bash\n#SBATCH -N1 -t 5\n")
    publish_once(made.run.submission(0), to_json({"job_id": str(made.job_id)}))
    made.claim()
    started = AttemptStarted(
        at=1, who="gate", attempt=0, job_id=str(made.job_id), restart_count=0, host="n1", nodes="n1"
    )
    made.journal.append(started, LaunchStarted(at=1, who="agent", attempt=0, launch=0))
    monkeypatch.setattr(module.time, "sleep", made.slurm.advance)
    return made


def state(scene: Scene) -> Run:
    return fold(read_journal(scene.run.journal))


def jobs(scene: Scene) -> int:
    return len(scene.calls("submit")) - 1


def test_a_script_that_was_killed_is_requeued_and_has_a_rescue_job_again(scene: Scene) -> None:
    scene.slurm.finish(scene.job_id, 0, signal.SIGKILL)
    scene.slurm.advance(2)
    assert run_rescue(scene.run, scene.slurm) == 0
    assert scene.slurm.job(scene.job_id).restart_count == 1
    assert jobs(scene) == 1, "afternotok fires once"


def test_a_cancelled_job_is_written_down_and_not_revived(scene: Scene) -> None:
    scene.slurm.cancel(scene.job_id)
    scene.slurm.advance(60)
    assert run_rescue(scene.run, scene.slurm) == 0
    assert scene.calls("requeue") == []
    assert jobs(scene) == 0
    assert state(scene).state is RunState.STOPPED


def test_a_living_job_is_left_alone(scene: Scene) -> None:
    assert run_rescue(scene.run, scene.slurm) == 0
    assert scene.calls("requeue", "cancel") == []
    assert state(scene).last_decision is None


@pytest.mark.parametrize("state_of_run", [RunState.HELD, RunState.FAILED])
def test_what_the_agent_decided_stands(scene: Scene, state_of_run: RunState) -> None:
    action = Action.HOLD if state_of_run is RunState.HELD else Action.STOP
    decision = Decision(action, state_of_run, "native_crash", "why")
    assert publish_decision(scene.attempt, decision, "agent")
    scene.slurm.finish(scene.job_id, 1)
    scene.slurm.advance(2)
    assert run_rescue(scene.run, scene.slurm) == 0, "also where the agent could not write its journal"
    assert scene.calls("requeue") == []
    assert state(scene).state is state_of_run
    scene.journal.append(build_decided(0, decision, "agent"))
    asked = len(scene.slurm.calls)
    assert run_rescue(scene.run, scene.slurm) == 0
    assert len(scene.slurm.calls) == asked, "it did not even ask"


def test_a_silent_slurm_is_asked_again(scene: Scene) -> None:
    scene.slurm.finish(scene.job_id, 0, signal.SIGKILL)
    scene.slurm.advance(2)
    scene.slurm.inject(FaultKind.UNAVAILABLE, times=3)
    assert run_rescue(scene.run, scene.slurm) == 0
    assert scene.slurm.job(scene.job_id).restart_count == 1
    scene.slurm.inject(FaultKind.UNAVAILABLE, times=10_000)
    assert run_rescue(scene.run, scene.slurm, patience_s=0.0) == 1


def test_a_rescue_job_that_slurm_refuses_is_told(scene: Scene) -> None:
    scene.slurm.finish(scene.job_id, 0, signal.SIGKILL)
    scene.slurm.advance(2)
    scene.slurm.inject(FaultKind.UNAVAILABLE, "submit")
    assert run_rescue(scene.run, scene.slurm) == 0
    (acted,) = state(scene).attempts[0].acted
    assert acted.accepted
    assert "no rescue job" in acted.detail


def test_no_run_is_no_traceback(tmp_path: Path, scene: Scene) -> None:
    with pytest.raises(NotFoundError):
        run_rescue(RunDir(tmp_path / "nowhere"), scene.slurm)


def test_the_script_asks_for_little_and_takes_the_persons_options_last() -> None:
    spec = Spec(
        command=("x",), name="my run", rescue=True, rescue_options=("--partition=cpu one", "--exclusive"),
        resources=Resources(partition="gpu", account="llm", nodes=64, gpus_per_node=8),
    )  # fmt: skip
    lines = build_rescue_script(spec, Path("/store/runs/a b%c"), "/usr/bin/python3").splitlines()
    directives = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]
    assert directives[0] == '--job-name="my run-rescue"'
    assert "--nodes=1" in directives
    assert not [line for line in directives if "gpus" in line]
    assert directives.index("--partition=gpu") < directives.index('--partition="cpu one"')
    assert '--output="/store/runs/a b%%c/logs/rescue-%j.log"' in directives
    assert lines[-1] == "exec /usr/bin/python3 -I '/store/runs/a b%c/agent.pyz' rescue '/store/runs/a b%c'"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (Spec(command=("true",), rescue_options=("--partition=x",)), "only with rescue"),
        (Spec(command=("true",), rescue=True, rescue_options=("--dependency=x",)), "slurmtrain's own"),
        (Spec(command=("true",), rescue=True, array="0-3"), "not for arrays"),
    ],
)
def test_what_makes_no_sense_is_refused(spec: Spec, said: str) -> None:
    problems = Problems()
    check_spec(spec, {}, problems, {})
    assert said in " ".join(problem.message for problem in problems.found)


def test_a_journal_that_cannot_be_read_for_a_while_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hold the word that nothing is to be done."""
    scene.slurm.finish(scene.job_id, 0, signal.SIGKILL)
    scene.slurm.advance(2)
    (damage := scene.run.journal / "agent-x.jsonl").mkdir()

    def sleep(seconds: float) -> None:
        assert scene.slurm.job(scene.job_id).restart_count == 0
        scene.slurm.advance(seconds)
        damage.rmdir()

    monkeypatch.setattr(module.time, "sleep", sleep)
    assert run_rescue(scene.run, scene.slurm) == 0
    assert scene.slurm.job(scene.job_id).restart_count == 1
