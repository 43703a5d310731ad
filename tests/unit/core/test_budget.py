"""What retries cost and may cost."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.budget import allocated_gpus, deadline_at, retry_hours
from slurmtrain.core.decision import Action, Budget, Decision, RunState, decision_to_dict
from slurmtrain.core.policy import Ending, decide
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Resources, Retry, Spec

H = 3600.0
GPUS = Resources(nodes=2, gpus_per_node=4)


def story(*launches: dict[str, Any], attempts: int = 1) -> Run:
    """Launches of one attempt after another, one hour each: dicts of ``cause``, ``after``, ``stop``, ``step``."""
    events: list[ev.Event] = [
        ev.RunCreated(at=0, who="user", name="t", user="u", uid=1, host="h"),
        ev.Submitted(at=0, who="user", submission=0, job_id="7"),
        ev.AttemptStarted(at=0, who="gate", attempt=0, job_id="7", restart_count=0, host="n1", nodes="n[1-2]"),
    ]
    for number, made in enumerate(launches):
        where = {"who": "agent", "attempt": 0, "launch": number}
        start = number * H
        events += [
            ev.LaunchStarted(at=start, progress=made.get("before"), **where),
            ev.LaunchEnded(
                at=start + H, exit_code=1, progress=made.get("after"), step=made.get("step"),
                stop_reason=made.get("stop"), **where,
            ),
        ]  # fmt: skip
        if "cause" in made:
            events.append(ev.Diagnosed(at=start + H, diagnosis={"cause": made["cause"], "node": "n1"}, **where))
            if number < len(launches) - 1:
                again = Decision(Action.RESTART_IN_PLACE, RunState.RUNNING, made["cause"], "", "program")
                events.append(ev.Decided(at=start + H, decision=decision_to_dict(again), **where))
    return fold(events)


def requeued(run: Run, *causes: str, budget: Budget = "program") -> Run:
    """As many attempts before the last one, each ended by a requeue."""
    (last,) = run.attempts
    made = [Decision(Action.REQUEUE, RunState.PENDING, cause, "", budget) for cause in causes]
    before = [dataclasses.replace(last, number=n, launches=(), decision=d) for n, d in enumerate(made)]
    return dataclasses.replace(run, attempts=(*before, dataclasses.replace(last, number=len(made))))


def ask(run: Run, cause: str, retry: Retry, now: float = 0.0, **changes: Any) -> Decision:
    ending = Ending(cause, cause, 1, **{"script_alive": True, "now": now, **changes})
    return decide(run, ending, Spec(("x",), retry=retry, resources=GPUS))


FAIL = {"cause": "nccl_timeout"}


@pytest.mark.parametrize(
    ("launches", "hours"),
    [
        ([FAIL], 0),  # the first failure is no retry's
        ([FAIL, FAIL], 8),
        ([FAIL, FAIL, FAIL], 16),
        ([FAIL, {**FAIL, "before": 10, "after": 20}, FAIL], 8),  # progress is work
        ([FAIL, {**FAIL, "before": 10, "after": 10}], 8),
        ([{**FAIL, "after": 10}, {**FAIL, "before": 10, "after": 10}], 8),  # the first failed, whatever it had left
        ([FAIL, {"stop": "time_limit"}], 0),
        ([{"stop": "preempted"}, FAIL], 0),
    ],
)
def test_what_retries_cost(launches: list[dict[str, Any]], hours: float) -> None:
    assert retry_hours(story(*launches), GPUS) == hours


@pytest.mark.parametrize(
    ("resources", "units"),
    [
        (Resources(nodes=3, gpus_per_node=8), (24, "GPU hours")),
        (Resources(nodes=2, gres="gpu:h100:4"), (8, "GPU hours")),
        (Resources(nodes=2, gres="nvme:1,gpu:2"), (4, "GPU hours")),
        (Resources(nodes=2, gres="nvme:3"), (2, "node hours")),
        (Resources(nodes=5, gpus_per_node=0), (5, "node hours")),
    ],
)
def test_what_a_job_holds(resources: Resources, units: tuple[int, str]) -> None:
    assert allocated_gpus(resources) == units


def test_retries_that_cost_too_much_are_held() -> None:
    run = story({**FAIL, "step": 1}, {**FAIL, "step": 2})
    assert ask(run, "nccl_timeout", Retry(max_gpu_hours=8.5)).action is Action.RESTART_IN_PLACE
    held = ask(run, "nccl_timeout", Retry(max_gpu_hours=8))
    assert held.action is Action.HOLD
    assert "8.0 GPU hours" in held.reason
    assert ask(run, "preempted", Retry(max_gpu_hours=1)).action is Action.REQUEUE, "no failure, no cost"


def test_no_retry_after_the_deadline() -> None:
    run = story(FAIL)
    assert ask(run, "nccl_timeout", Retry(deadline="2h"), now=1.9 * H).action is Action.RESTART_IN_PLACE
    assert ask(run, "nccl_timeout", Retry(deadline="2h"), now=2 * H).action is Action.HOLD
    assert ask(run, "time_limit", Retry(deadline="2h"), now=2 * H).action is Action.HOLD
    assert ask(run, "import_error", Retry(deadline="2h"), now=2 * H).action is Action.STOP


@pytest.mark.parametrize(
    ("text", "at"),
    [("90m", 5400.0), ("2d", 172800.0), ("1w", 7 * 86400.0), ("1970-01-01T02:00:00+01:00", 3600.0), ("soon", None),
     (None, None)],
)  # fmt: skip
def test_deadlines(text: str | None, at: float | None) -> None:
    assert deadline_at(text, story(FAIL)) == at


def test_a_cause_may_have_ceilings_of_its_own() -> None:
    own = Retry(requeues=1, in_place=5, causes={"nccl_timeout": {"requeues": 3, "in_place": 0, "delay_s": 7}})
    run = requeued(story(FAIL), "nccl_timeout", "nccl_timeout")
    assert ask(run, "nccl_timeout", own).action is Action.REQUEUE, "the third of its own three"
    assert ask(run, "native_crash", own).action is Action.RESTART_IN_PLACE
    crash = requeued(story({"cause": "native_crash"}), "nccl_timeout", "nccl_timeout")
    assert ask(crash, "native_crash", own, script_alive=False).action is Action.REQUEUE, "theirs do not count here"
    assert ask(requeued(story(FAIL), *["nccl_timeout"] * 3), "nccl_timeout", own).action is Action.HOLD
    other = requeued(story({"cause": "native_crash"}), "native_crash")
    assert ask(other, "native_crash", own, script_alive=False).action is Action.HOLD


@pytest.mark.parametrize(
    ("own", "action", "state"),
    [
        ({"first": "requeue"}, Action.REQUEUE, RunState.PENDING),
        ({"first": "hold"}, Action.HOLD, RunState.HELD),
        ({"first": "hold", "hold": False}, Action.STOP, RunState.FAILED),
        ({"first": "stop"}, Action.STOP, RunState.FAILED),
    ],
)
def test_the_first_rung_of_a_cause(own: dict[str, Any], action: Action, state: RunState) -> None:
    decision = ask(story(FAIL), "nccl_timeout", Retry(causes={"nccl_timeout": own}))
    assert (decision.action, decision.state) == (action, state)


def test_a_permanent_cause_may_be_retried_by_who_knows_better() -> None:
    run = story({"cause": "cuda_oom"})
    assert ask(run, "cuda_oom", Retry()).action is Action.STOP
    own = Retry(causes={"cuda_oom": {"first": "in_place"}})
    assert ask(run, "cuda_oom", own, action="stop").action is Action.RESTART_IN_PLACE


@pytest.mark.parametrize(
    ("first", "second", "action"),
    [
        (5, 9, Action.RESTART_IN_PLACE),
        (9, 9, Action.REQUEUE),
        (9, 5, Action.REQUEUE),
        (None, None, Action.REQUEUE),
        (None, 3, Action.RESTART_IN_PLACE),
    ],
)
def test_a_higher_step_is_progress(first: int | None, second: int | None, action: Action) -> None:
    run = story({**FAIL, "step": first}, {**FAIL, "step": second})
    assert ask(run, "nccl_timeout", Retry()).action is action


def test_the_delay_is_another_one_for_each_try_and_the_same_for_everybody() -> None:
    runs = [story(*[{**FAIL, "step": s} for s in range(n)]) for n in range(2, 7)]
    delays = [ask(run, "nccl_timeout", Retry(in_place=99)).delay_s for run in runs]
    assert all(30 <= delay <= 37 for delay in delays)
    assert len(set(delays)) > 1
    assert delays == [ask(run, "nccl_timeout", Retry(in_place=99)).delay_s for run in runs]
