"""A run's state is the fold over its journal."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.run import Run, fold

CREATED = ev.RunCreated(at=0, who="user", name="t", user="u", uid=1, host="h")
SUBMITTED = ev.Submitted(at=1, who="user", submission=0, job_id="7")
STARTED = ev.AttemptStarted(at=2, who="gate", attempt=0, job_id="7", restart_count=0, host="n1", nodes="n[1-2]")
LAUNCHED = ev.LaunchStarted(at=3, who="agent", attempt=0, launch=0)
ENDED = ev.LaunchEnded(at=4, who="agent", attempt=0, launch=0, exit_code=1)


def job(state: str, reason: str = "") -> ev.JobSeen:
    return ev.JobSeen(at=1, who="watcher", job_id="7", restart_count=0, state=state, reason=reason, nodes="n1")


def decided(action: Action, state: RunState, launch: int = 0) -> ev.Decided:
    decision = decision_to_dict(Decision(action, state, "c", "why"))
    return ev.Decided(at=5, who="agent", attempt=0, launch=launch, decision=decision)


def states(*events: ev.Event) -> list[RunState]:
    return [change.state for change in fold(events).history]


def test_the_plain_way_to_completion() -> None:
    complete = decided(Action.COMPLETE, RunState.COMPLETED)
    queued = [CREATED, SUBMITTED, job("PENDING", "Resources"), job("RUNNING")]
    assert states(*queued, STARTED, LAUNCHED, ENDED, complete) == [
        RunState.PENDING, RunState.INQUEUE, RunState.STARTING, RunState.RUNNING, RunState.COMPLETED,
    ]  # fmt: skip


def test_a_restart_in_place_is_no_change_of_state_and_no_decision_about_the_attempt() -> None:
    run = fold([CREATED, SUBMITTED, STARTED, LAUNCHED, ENDED, decided(Action.RESTART_IN_PLACE, RunState.RUNNING)])
    assert run.state is RunState.RUNNING
    assert run.attempts[0].decision is None
    assert run.attempts[0].launches[0].decision is not None


def test_preempted_passes_when_the_job_waits_again() -> None:
    events = [CREATED, SUBMITTED, STARTED, LAUNCHED, ENDED, decided(Action.REQUEUE, RunState.PREEMPTED), job("PENDING")]
    assert states(*events)[-2:] == [RunState.PREEMPTED, RunState.INQUEUE]


def test_an_ended_run_stays_ended_whatever_slurm_says() -> None:
    run = fold(
        [CREATED, SUBMITTED, STARTED, decided(Action.COMPLETE, RunState.COMPLETED), job("PENDING"), job("RUNNING")]
    )
    assert run.state is RunState.COMPLETED
    assert run.job is not None
    assert run.job.state == "RUNNING"


def test_an_attempt_starts_once_however_many_write_it_down() -> None:
    """A watcher that had read the journal before the gate wrote there adds its own line."""
    late = ev.AttemptStarted(at=6, who="watcher", attempt=0, job_id="7", restart_count=0, host="", nodes="n1")
    assert fold([CREATED, SUBMITTED, STARTED, LAUNCHED, late]) == fold([CREATED, SUBMITTED, STARTED, LAUNCHED])
    ended = [CREATED, SUBMITTED, STARTED, LAUNCHED, ENDED, decided(Action.COMPLETE, RunState.COMPLETED)]
    assert fold([*ended, late]).state is RunState.COMPLETED


def test_an_unknown_word_of_slurm_changes_nothing() -> None:
    assert fold([CREATED, SUBMITTED, job("FLOATING")]).state is RunState.INQUEUE


def test_a_decision_nobody_knows_is_passed_over() -> None:
    event = ev.Decided(at=1, who="x", attempt=0, decision={"action": "teleport"})
    assert fold([CREATED, event]).state is RunState.PENDING


_EVENTS = st.lists(
    st.sampled_from(
        [CREATED, SUBMITTED, STARTED, LAUNCHED, ENDED, job("PENDING"), job("RUNNING"), job("COMPLETED"),
         decided(Action.REQUEUE, RunState.PENDING), decided(Action.HOLD, RunState.HELD),
         decided(Action.COMPLETE, RunState.COMPLETED), ev.Released(at=9, who="user", by="u"),
         ev.UnknownEvent(at=1, who="x"), ev.LaunchEnded(at=1, who="a", attempt=3, launch=2, exit_code=0)]
    ),
    max_size=30,
)  # fmt: skip


@given(_EVENTS)
def test_any_order_folds_and_the_history_has_no_repeats(events: list[ev.Event]) -> None:
    run: Run = fold(events)
    pairs = zip(run.history, run.history[1:], strict=False)
    assert all(before.state is not after.state for before, after in pairs)
    assert [a.number for a in run.attempts] == sorted({a.number for a in run.attempts})


def test_what_another_host_could_not_see_and_notes_once_more_changes_nothing() -> None:
    again = ev.AttemptStarted(at=6, who="watcher", attempt=0, job_id="7", restart_count=0, host="", nodes="n[1-2]")
    run = fold([CREATED, SUBMITTED, STARTED, LAUNCHED, ENDED, decided(Action.STOP, RunState.FAILED), again])
    assert run.state is RunState.FAILED
    assert [change.state for change in run.history][-2:] == [RunState.RUNNING, RunState.FAILED]
    assert run.attempts[0].started == STARTED


def test_a_launch_that_is_sorted_behind_the_decision_about_its_attempt_moves_nothing_back() -> None:
    """Who took over could not read the journal, and numbered its events as if there had been none."""
    held = decided(Action.HOLD, RunState.HELD, launch=1)
    run = fold([CREATED, SUBMITTED, STARTED, held, dataclasses.replace(STARTED, at=1.5), LAUNCHED, job("RUNNING")])
    assert run.state is RunState.HELD
    assert run.attempts[0].launches[0].started == LAUNCHED


def test_an_end_is_the_last_state_whoever_wakes_up_later() -> None:
    stopped = decided(Action.STOP, RunState.STOPPED)
    late = [decided(Action.REQUEUE, RunState.PENDING), SUBMITTED, LAUNCHED]
    assert states(CREATED, SUBMITTED, STARTED, stopped, *late)[-1] is RunState.STOPPED


def test_a_decision_that_is_written_down_once_more_moves_nothing_back() -> None:
    """Somebody who had read the journal before stood still, and a person has let the run go on meanwhile."""
    held = decided(Action.HOLD, RunState.HELD)
    released = ev.Released(at=6, who="user", attempt=0, by="u")
    events = [CREATED, SUBMITTED, STARTED, LAUNCHED, held, released, SUBMITTED]
    assert states(*events, held)[-2:] == [RunState.PENDING, RunState.INQUEUE]
    failed = dataclasses.replace(held, again=True)
    assert states(*events[:-1], failed)[-2:] == [RunState.PENDING, RunState.HELD]


def test_a_look_that_is_written_down_late_moves_nothing_back() -> None:
    assert states(CREATED, SUBMITTED, STARTED, job("PENDING"), LAUNCHED)[-2:] == [RunState.STARTING, RunState.RUNNING]


def test_a_job_that_a_watcher_found_cancelled_in_the_queue_has_never_been_starting() -> None:
    noted = ev.AttemptStarted(at=6, who="watcher", attempt=0, job_id="7", restart_count=0, host="", nodes="")
    events = [CREATED, SUBMITTED, noted, decided(Action.LEAVE, RunState.STOPPED)]
    assert states(*events) == [RunState.PENDING, RunState.INQUEUE, RunState.STOPPED]
