"""stop and release: what they write, what they do to jobs, and what happens when they are called twice or half done."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from made_runs import MadeRun, Slurm, make_run

from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import BaseState
from slurmtrain.core.spec import Retry, Stop
from slurmtrain.errors import RefusedError, SlurmUnavailableError
from slurmtrain.ops.release import release_run
from slurmtrain.ops.status import Sight, see_jobs
from slurmtrain.ops.stop import Stopped, Way, Wish, stop_run
from slurmtrain.store.inbox import inbox_of
from slurmtrain.store.publish import read_json
from slurmtrain.testing import FaultKind
from slurmtrain.watch.loop import Watcher

ANN = Wish("ann@login", "wrong data")


def _stop(run: MadeRun, slurm: Slurm, wish: Wish = ANN) -> Stopped:
    sights, _ = see_jobs([run.view], slurm)
    return stop_run(run.view, sights.get(run.dir.run_id, Sight()), slurm, wish)


def _base(slurm: Slurm, job_id: JobId) -> BaseState | None:
    slurm.advance(5)
    return slurm.observe([job_id]).jobs[job_id].state.base


def test_a_waiting_job_is_cancelled_at_once(tmp_path: Path) -> None:
    slurm, run = Slurm(nodes=("n1",)), make_run(tmp_path)
    slurm.submit(run.dir.batch_script)
    job_id = run.submitted(slurm)
    stopped = _stop(run, slurm)
    assert (stopped.way, stopped.settled) == (Way.CANCEL, True)
    assert _base(slurm, job_id) is BaseState.CANCELLED
    assert run.state.state is RunState.STOPPED
    assert "ann@login: wrong data" in run.dir.stop_file.read_text()
    assert list(inbox_of(tmp_path).iterdir())


def test_a_running_one_is_asked_and_its_agent_decides(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.launch(0)
    stopped = _stop(run, slurm)
    assert (stopped.way, stopped.settled) == (Way.ASK, False)
    assert _base(slurm, job_id) is BaseState.RUNNING
    assert run.dir.stop_file.exists()
    assert run.dir.attempt(0).read_decision() is None
    assert run.state.state is RunState.RUNNING
    assert run.state.stop_requested is not None


def test_it_is_said_how_long_a_training_that_does_not_listen_takes(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path, stop=Stop(warning_s=60, grace_s=30))
    run.attempt(run.submitted(slurm))
    run.launch(0)
    said = _stop(run, slurm).sentence
    assert "TERM after 60 s" in said
    assert "KILL 30 s later: it is gone in about 90 s" in said


def test_now_cancels_and_decides_for_the_attempt(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    _stop(run, slurm, Wish("ann", at_once=True))
    assert _base(slurm, job_id) is BaseState.CANCELLED
    decision = run.dir.attempt(0).read_decision()
    assert decision is not None
    assert (decision["action"], decision["state"], decision["decided_by"]) == ("stop", "Stopped", "user")
    assert run.state.state is RunState.STOPPED


def test_a_requeued_job_that_waits_is_cancelled_and_the_old_decision_stays(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.decided(0, Action.REQUEUE, RunState.PENDING)
    slurm.requeue(job_id, only_running=True)
    slurm.advance(3)
    _stop(run, slurm)
    assert _base(slurm, job_id) is BaseState.CANCELLED
    assert (run.dir.attempt(0).read_decision() or {})["action"] == "requeue"
    assert run.state.state is RunState.STOPPED


def test_a_completion_that_came_first_is_not_undone(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    # the agent has published its decision and not yet written the journal
    run.dir.attempt(0).publish_decision(
        {"action": "complete", "state": "Completed", "cause": "no_failure", "reason": "done"}
    )
    stopped = _stop(run, slurm, Wish("ann", at_once=True))
    assert "Completed" in stopped.sentence
    assert run.state.state is not RunState.STOPPED


def test_stopping_twice_and_stopping_what_has_ended_change_nothing(tmp_path: Path) -> None:
    slurm, run = Slurm(nodes=("n1",)), make_run(tmp_path)
    slurm.submit(run.dir.batch_script)
    run.submitted(slurm)
    _stop(run, slurm)
    before = len(run.view.events)
    assert _stop(run, slurm, Wish("bob")).way is Way.NOTHING
    assert len(run.view.events) == before
    assert "ann" in run.dir.stop_file.read_text()


def test_a_held_run_is_stopped_without_slurm(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.decided(0, Action.HOLD, RunState.HELD)
    slurm.inject(FaultKind.UNAVAILABLE, times=100)
    assert _stop(run, slurm).settled
    assert run.state.state is RunState.STOPPED


def test_when_slurm_is_down_the_request_stands(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    slurm.inject(FaultKind.UNAVAILABLE)
    with pytest.raises(SlurmUnavailableError, match="written down"):
        _stop(run, slurm)
    assert run.dir.stop_file.exists()
    assert run.state.stop_requested is not None
    assert not run.state.ended
    assert _base(slurm, job_id) is BaseState.RUNNING
    _stop(run, slurm, Wish("ann", at_once=True))
    assert run.state.state is RunState.STOPPED


def test_a_run_without_a_job_is_stopped_by_the_file(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert _stop(run, Slurm()).settled
    assert run.dir.stop_file.exists()
    assert run.state.state is RunState.STOPPED


def _held(store: Path, slurm: Slurm, **spec: object) -> MadeRun:
    run = make_run(store, **spec)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.decided(0, Action.HOLD, RunState.HELD, exclude=("n3",))
    slurm.finish(job_id, 1)
    slurm.advance(5)
    return run


def test_a_release_submits_one_new_job_of_the_run(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm, retry=Retry(exclude_for_s=10**10))  # this run is of another year
    sentence = release_run(run.dir, slurm, "ann", "n4")
    jobs = sorted(slurm.observe().jobs)
    assert len(jobs) == 2
    assert str(jobs[1]) in sentence
    assert run.state.state is RunState.INQUEUE
    assert run.state.job_id == str(jobs[1])
    assert (read_json(run.dir.submission(1)) or {})["job_id"] == str(jobs[1])
    assert slurm.arguments == ("1",)
    assert slurm.excluded_nodes(jobs[1]) == "n[3-4]"
    assert "nothing to do" in release_run(run.dir, slurm, "bob")
    assert len(slurm.observe().jobs) == 2


def test_two_people_at_once_make_one_job(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm)

    def second(name: str, when: str) -> None:
        if name == "submit" and when == "before":
            slurm.on_call = None
            # bob read the journal before ann's release was in it
            (run.dir.submissions / "release-000.json").stat()
            with pytest.raises(RefusedError, match="ann"):
                _release_as_if_held(run, slurm)

    slurm.on_call = second
    release_run(run.dir, slurm, "ann")
    assert len(slurm.observe().jobs) == 2


def _release_as_if_held(run: MadeRun, slurm: Slurm) -> None:
    from slurmtrain.ops import release

    release._claim(run.dir, 0, "bob", None)


def test_a_release_that_slurm_refuses_leaves_the_run_held_and_may_be_repeated(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm)
    slurm.inject(FaultKind.BUSY, "submit")
    with pytest.raises(SlurmUnavailableError):
        release_run(run.dir, slurm, "ann")
    assert run.state.state is RunState.HELD
    assert len(slurm.observe().jobs) == 1
    release_run(run.dir, slurm, "ann")
    assert run.state.state is RunState.INQUEUE
    assert len(slurm.observe().jobs) == 2


def test_nothing_is_begun_while_slurm_is_down(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm)
    before = len(run.view.events)
    slurm.inject(FaultKind.UNAVAILABLE)
    with pytest.raises(SlurmUnavailableError):
        release_run(run.dir, slurm, "ann")
    assert len(run.view.events) == before
    assert run.state.state is RunState.HELD


def test_a_lost_reply_is_written_down_and_makes_no_second_job(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm)
    slurm.inject(FaultKind.REPLY_LOST, "submit")
    with pytest.raises(SlurmUnavailableError):
        release_run(run.dir, slurm, "ann")
    assert run.state.uncertain
    assert run.state.state is RunState.PENDING
    assert run.dir.submission(1).with_suffix(".pending").exists()


def test_a_claim_of_somebody_who_died_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm()
    run = _held(tmp_path, slurm)
    _release_as_if_held(run, slurm)
    with pytest.raises(RefusedError, match="bob"):
        release_run(run.dir, slurm, "ann")
    later = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: later)
    release_run(run.dir, slurm, "ann")
    assert len(slurm.observe().jobs) == 2


@pytest.mark.parametrize("died", ["before", "after"])
def test_a_release_that_died_is_finished_by_the_watchers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    """Its word was in the journal already, so the run was neither held nor had a job."""
    slurm = Slurm()
    run = _held(tmp_path, slurm)

    def die(name: str, when: str) -> None:
        if name == "submit" and when == died:
            raise KeyboardInterrupt

    slurm.on_call = die
    with pytest.raises(KeyboardInterrupt):
        release_run(run.dir, slurm, "ann", "n4")
    slurm.on_call = None
    assert run.state.state is RunState.PENDING
    one, two = Watcher(tmp_path, slurm, 60.0), Watcher(tmp_path, slurm, 60.0)
    one.look_once()
    jobs = len(slurm.observe().jobs)
    with pytest.raises(RefusedError, match="ann is releasing"):
        release_run(run.dir, slurm, "bob")
    later = time.time() + 1000
    monkeypatch.setattr(time, "time", lambda: later)
    one.look_once()
    two.look_once()
    assert run.state.state is RunState.INQUEUE
    assert len(slurm.observe().jobs) == jobs + 1  # two of one submission, where the reply was lost: one may train
    assert slurm.arguments == ("1",)
    assert (read_json(run.dir.submission(1)) or {})["job_id"] == run.state.job_id
    assert slurm.excluded_nodes(parse_job_id(run.state.job_id)) == "n4"


def test_ended_and_stopped_runs_are_not_released(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.decided(0, Action.STOP, RunState.FAILED)
    with pytest.raises(RefusedError, match="restart"):
        release_run(run.dir, slurm, "ann")
    held = make_run(tmp_path, "held")
    held.attempt(held.submitted(slurm))
    held.decided(0, Action.HOLD, RunState.HELD)
    held.dir.stop_file.touch()
    with pytest.raises(RefusedError, match="asked to stop"):
        release_run(held.dir, slurm, "ann")


def test_a_job_that_slurm_holds_is_released(tmp_path: Path) -> None:
    slurm, run = Slurm(nodes=("n1",)), make_run(tmp_path)
    slurm.submit(run.dir.batch_script)
    job_id = run.submitted(slurm)
    slurm.hold(job_id)
    release_run(run.dir, slurm, "ann")
    assert "held" not in slurm.observe([job_id]).jobs[job_id].reason.lower()
