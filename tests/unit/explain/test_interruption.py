"""What is no failure is not shown as one: two lines say what came and whether work was saved. A hang names its rank."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from made_runs import T0
from page_kinds import Teller

from slurmtrain.cli.explain_screen import Screen
from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.ops.explain import Explanation, explain_run
from slurmtrain.ops.page import make_page

SRUN = "slurmstepd-n1: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-30T08:34:47 DUE TO PREEMPTION ***"


def decided(run: Teller, action: Action, state: RunState, cause: str, who: str = "gate", attempt: int = 0) -> None:
    decision = Decision(action, state, cause, "goes on from its checkpoint")
    run.write(ev.Decided, who=who, attempt=attempt, decision=decision_to_dict(decision))


def preempted(tmp_path: Path) -> Teller:
    run = Teller(tmp_path, "pre", nodes=1, ranks=2)
    run.log.write_text(f"0: step 85/300\n{SRUN}\nsrun: Job step aborted\n")
    run.attempt(0, "n1").launch(
        0, 0, 26, exit_code=0, stop_reason="preempted", step=85, saved="saved step-85.pt, 1 s before the end"
    )
    run.write(ev.AttemptEnded, who="gate", attempt=0, job_id="1", state="PREEMPTED")
    found = {"cause": "preempted", "sentence": "Slurm preempted the job", "confidence": 0.9, "retryable": True}
    shown = {"evidence": [{"line": 2, "text": SRUN, "file": "logs/train-1.log"}]}
    run.write(ev.Diagnosed, who="gate", attempt=0, diagnosis={**found, **shown, "family": "slurm", "action": "requeue"})
    decided(run, Action.REQUEUE, RunState.PREEMPTED, "preempted")
    return run


def goes_on(run: Teller, attempt: int = 1, resume: str | None = "/x/step-85.pt") -> None:
    run.attempt(attempt, "n1")
    run.write(ev.LaunchStarted, attempt=attempt, launch=0, resume_from=resume, log_file="logs/train-1.log")


def explain(run: Teller) -> Explanation:
    run.run.write(*run.events)
    return explain_run(run.run.dir, None, T0 + 500)


def screen(found: Explanation, width: int = 200) -> list[str]:
    return click.unstyle("\n".join(Screen(width).explanation(found))).splitlines()


@pytest.mark.parametrize("back", [True, False])
def test_a_preemption_is_told_in_two_lines(tmp_path: Path, back: bool) -> None:
    run = preempted(tmp_path)
    if back:
        goes_on(run)
    found = explain(run)
    lines = screen(found)
    what, work = lines[2], lines[3]
    assert what.startswith("Before      preempted: Slurm gave its nodes to another job; attempt 0 ended at ")
    assert what.endswith(", at step 85")
    assert work.strip() == "saved step-85.pt, 1 s before the end" + (
        "; attempt 1 resumed from step-85.pt" if back else ""
    )
    text = "\n".join(lines)
    for wrong in ("slurmstepd", "Found", "launch that failed", "confidence"):
        assert wrong not in text, wrong
    told = json.loads(json.dumps(found.to_dict()))
    assert (told["interruption"]["cause"], told["diagnosis"]["cause"]) == ("preempted", "preempted")
    page = make_page(found, [], T0)
    assert "saved step-85.pt" in page
    assert "What happened" not in page


def test_a_time_limit_that_left_nothing_says_so(tmp_path: Path) -> None:
    run = Teller(tmp_path, "limit", nodes=1, ranks=1)
    lost = "not saved: the 2 min of work of this launch are lost"
    run.attempt(0, "n1").launch(0, 0, 120, exit_code=137, stop_reason="time_limit", saved=lost)
    decided(run, Action.REQUEUE, RunState.PENDING, "time_limit", "agent")
    goes_on(run, resume=None)
    lines = screen(explain(run))
    assert lines[2].startswith("Before      its time limit came; attempt 0 ended at ")
    assert lines[3].strip() == f"{lost}; attempt 1 began without a checkpoint"


def test_a_node_that_drained_is_named(tmp_path: Path) -> None:
    run = Teller(tmp_path, "drain", nodes=1, ranks=1)
    run.attempt(0, "n1")
    run.write(ev.LaunchStarted, attempt=0, launch=0)
    run.write(ev.StopSent, attempt=0, launch=0, reason="drain", detail="n1 drains (bad fan)")
    run.write(ev.LaunchEnded, attempt=0, launch=0, exit_code=0, stop_reason="drain", duration_s=5)
    decided(run, Action.REQUEUE, RunState.PENDING, "drain", "agent")
    lines = screen(explain(run))
    assert lines[2].startswith("Before      n1 drains (bad fan); attempt 0 ended at")
    assert "slurmtrain checkpoints" in lines[3]


def test_a_failure_that_came_later_is_what_is_shown(tmp_path: Path) -> None:
    run = preempted(tmp_path)
    run.attempt(1, "n1").launch(1, 0, 30, exit_code=1)
    run.failed(1, 0, Action.STOP, RunState.FAILED, "no retry can cure this", rank=3, node="n1")
    text = "\n".join(screen(explain(run)))
    assert "Before" not in text
    assert "cuda_oom" in text


def test_a_run_that_a_person_stopped_says_whether_it_was_saved(tmp_path: Path) -> None:
    run = Teller(tmp_path, "stop", nodes=1, ranks=1)
    run.write(ev.StopRequested, who="user", by="ann")
    run.attempt(0, "n1").launch(0, 0, 30, exit_code=0, stop_reason="user", saved="saved step-85.pt, 1 s before the end")
    decided(run, Action.STOP, RunState.STOPPED, "user_cancelled", "agent")
    assert screen(explain(run))[1] == "Stopped by ann; saved step-85.pt, 1 s before the end."


def test_a_run_that_goes_on_after_a_hang_names_the_odd_rank_at_once(tmp_path: Path) -> None:
    run = Teller(tmp_path, "hang", nodes=2, ranks=2)
    run.attempt(0, "n[1-2]").launch(0, 0, 30, exit_code=134)
    stood = "No sign of life for 8 s: rank 2 stood in next_batch (train.py:13), the others in barrier (train.py:10)"
    run.failed(
        0,
        0,
        Action.RESTART_IN_PLACE,
        RunState.RUNNING,
        "a retry may help",
        cause="hang_no_progress",
        rank=2,
        node="n2",
        sentence=stood,
    )
    run.write(ev.LaunchStarted, attempt=0, launch=1)
    lines = screen(explain(run))
    assert lines[1].startswith("Running")
    assert stood in lines[2]
