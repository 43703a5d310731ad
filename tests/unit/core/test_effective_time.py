"""Where a run's time went: every second is counted once, and lost is what no checkpoint has."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.effective_time import EffectiveTime, Use, measure_time
from slurmtrain.core.run import fold

BAD = {"cause": "cuda_oom"}


class Story:
    """Events of a run, told in order."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = [ev.RunCreated(at=0, who="user", name="t", user="ann", uid=1, host="h")]

    def attempt(self, at: float, number: int = 0) -> Story:
        self.events.append(
            ev.AttemptStarted(
                at=at, who="gate", attempt=number, job_id="1", restart_count=number, host="n1", nodes="n1"
            )
        )
        return self

    def launch(self, start: float, end: float | None, number: int = 0, attempt: int = 0, **more: Any) -> Story:
        place = {"who": "agent", "attempt": attempt, "launch": number}
        started = {key: more.pop(key) for key in ("resume_from",) if key in more}
        before = more.pop("before", None)
        self.events.append(ev.LaunchStarted(at=start, **place, progress=before, **started))
        if end is not None:
            failed = more.pop("failed", True)
            self.events.append(ev.LaunchEnded(at=end, **place, exit_code=int(failed), **more))
            if failed:
                self.events.append(ev.Diagnosed(at=end, **place, diagnosis=BAD))
        return self

    def decided(self, at: float, action: Action, state: RunState, attempt: int = 0) -> Story:
        decision = decision_to_dict(Decision(action, state, "cuda_oom", "because"))
        self.events.append(ev.Decided(at=at, who="agent", attempt=attempt, decision=decision))
        return self

    def measure(self, now: float = 1000, **more: Any) -> EffectiveTime:
        return measure_time(fold(self.events), now, **more)


def test_a_run_that_failed_without_a_checkpoint_lost_everything() -> None:
    found = Story().attempt(10).launch(15, 65).decided(70, Action.STOP, RunState.FAILED).measure()
    assert found.totals == {Use.WAITING: 10, Use.STARTING: 5, Use.LOST: 50, Use.RESTARTING: 5}
    assert found.failures == 1
    assert found.failure_every_s == 50


def test_what_the_newest_checkpoint_has_is_kept() -> None:
    found = (
        Story().attempt(0).launch(0, 100, progress=30, step=40).decided(100, Action.STOP, RunState.FAILED)
    ).measure(saved_at=[20, 60, 80])
    assert found.totals == {Use.KEPT: 80, Use.LOST: 20}
    assert found.save_every_s == 30


def test_steps_tell_it_where_the_checkpoint_is_gone() -> None:
    story = Story().attempt(0).launch(0, 100, before=100, progress=150, step=200)
    found = story.decided(100, Action.STOP, RunState.FAILED).measure()
    assert found.totals == {Use.KEPT: 50, Use.LOST: 50}
    assert all(span.estimated for span in found.spans)


def test_what_was_rolled_back_is_lost() -> None:
    story = Story().attempt(0).launch(0, 100, progress=50, step=50)
    story.launch(110, 200, number=1, before=None).launch(210, 300, number=2, before=0, progress=10, step=10)
    found = story.decided(300, Action.STOP, RunState.FAILED).measure(saved_at=[90])
    assert next(span for span in found.spans if span.launch == 0).use is Use.LOST


def test_checkpoints_without_numbers_count_too() -> None:
    story = Story().attempt(0).launch(0, 100, resume_from=None).launch(100, 150, number=1, resume_from="/c/last.pt")
    found = story.decided(150, Action.STOP, RunState.FAILED).measure()
    assert found.totals == {Use.UNKNOWN: 100, Use.LOST: 50}


def test_a_finished_run_kept_its_last_launch() -> None:
    story = Story().attempt(0).launch(0, 100, failed=False).decided(100, Action.COMPLETE, RunState.COMPLETED)
    found = story.measure()
    assert found.totals == {Use.KEPT: 100}
    assert found.failure_every_s is None


def test_a_running_launch_is_open_behind_its_checkpoint() -> None:
    found = Story().attempt(0).launch(0, None).measure(now=50, saved_at=[30])
    assert found.totals == {Use.KEPT: 30, Use.OPEN: 20}


def test_held_and_queued_time_is_not_training() -> None:
    story = Story().attempt(0).launch(0, 10).decided(10, Action.HOLD, RunState.HELD)
    assert story.measure(now=100).totals == {Use.LOST: 10, Use.HELD: 90}
    assert Story().measure(now=40).totals == {Use.WAITING: 40}


def test_youngs_interval_needs_both_measurements() -> None:
    story = Story().attempt(0).launch(0, 5000).decided(5000, Action.STOP, RunState.FAILED)
    assert story.measure(now=5000).suggested_s is None
    assert story.measure(now=5000, save_s=100).suggested_s == pytest.approx(1000)


@given(
    times=st.lists(st.floats(0, 1e6), min_size=2, max_size=24),
    saves=st.lists(st.floats(0, 1e6), max_size=5),
    progress=st.lists(st.none() | st.integers(0, 100), min_size=24, max_size=24),
)
def test_no_second_is_counted_twice(times: list[float], saves: list[float], progress: list[int | None]) -> None:
    """Whatever clocks say, spans do not overlap backwards within an attempt and none is negative."""
    story = Story().attempt(times[0])
    for number, (start, end) in enumerate(zip(times[1::2], times[2::2], strict=False)):
        story.launch(start, end, number=number, before=progress[number], progress=progress[-number - 1])
    found = story.decided(times[-1], Action.REQUEUE, RunState.PENDING).measure(now=1e6, saved_at=saves)
    assert all(span.seconds > 0 for span in found.spans)
    ordered = [(span.start, span.end) for span in found.spans]
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(ordered))
    assert found.whole_s <= 1e6 + 1
