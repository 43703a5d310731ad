"""The ladder, as tables: what happened before and what happened now → what is decided."""

from __future__ import annotations

import dataclasses

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_from_dict, decision_to_dict
from slurmtrain.core.policy import Ending, rolled_back_in_vain
from slurmtrain.core.policy import decide as decide_by_spec
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Resources, Retry, Spec

RETRY = Retry(in_place=2, requeues=2, infrastructure=1, delay_s=30)


def decide(run: Run, ending: Ending, retry: Retry, resources: Resources | None = None) -> Decision:
    return decide_by_spec(run, ending, Spec(("x",), retry=retry, resources=resources or Resources()))


class Story:
    """Builds a run's journal the way the agent writes it."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = [
            ev.RunCreated(at=0, who="user", name="t", user="u", uid=1, host="login"),
            ev.Submitted(at=0, who="user", submission=0, job_id="7"),
        ]
        self.attempt = -1
        self.launch = -1

    def start_attempt(self) -> Story:
        self.attempt += 1
        self.launch = -1
        self.events.append(
            ev.AttemptStarted(
                at=1, who="gate", attempt=self.attempt, job_id="7", restart_count=self.attempt, host="n1", nodes="n1"
            )
        )
        return self

    def fail(self, cause: str, *, before: int | None = None, after: int | None = None, node: str = "n1") -> Story:
        self.launch += 1
        where = {"attempt": self.attempt, "launch": self.launch}
        self.events += [
            ev.LaunchStarted(at=2, who="agent", progress=before, **where),
            ev.LaunchEnded(at=3, who="agent", exit_code=1, progress=after, **where),
            ev.Diagnosed(at=3, who="agent", diagnosis={"cause": cause, "node": node}, **where),
        ]
        return self

    def lose(self, cause: str, *, before: int | None = None, after: int | None = None) -> Story:
        """The launch's end was seen by nobody: the node was lost, the script killed."""
        self.launch += 1
        where = {"attempt": self.attempt, "launch": self.launch}
        self.events += [
            ev.LaunchStarted(at=2, who="agent", progress=before, **where),
            ev.AttemptEnded(at=3, who="gate", attempt=self.attempt, job_id="7", state="NODE_FAIL", progress=after),
            ev.Diagnosed(at=3, who="gate", attempt=self.attempt, diagnosis={"cause": cause}),
        ]
        self.launch = -1
        return self

    def decided(self, decision: Decision) -> Story:
        self.events.append(
            ev.Decided(at=4, who="agent", attempt=self.attempt, launch=self.launch, decision=decision_to_dict(decision))
        )
        return self

    @property
    def run(self) -> Run:
        return fold(self.events)


def ending(cause: str, **changes: object) -> Ending:
    base = Ending(cause=cause, sentence=cause, exit_code=1, script_alive=True)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def after_one(cause: str, **changes: object) -> Decision:
    return decide(Story().start_attempt().fail(cause).run, ending(cause, **changes), RETRY)


@pytest.mark.parametrize(
    ("cause", "action", "budget"),
    [
        ("nccl_timeout", Action.RESTART_IN_PLACE, "program"),
        ("native_crash", Action.RESTART_IN_PLACE, "program"),
        ("unknown", Action.RESTART_IN_PLACE, "program"),
        ("node_fail", Action.REQUEUE, "infrastructure"),
        ("gpu_lost", Action.REQUEUE, "infrastructure"),
        ("import_error", Action.STOP, "none"),
        ("python_exception", Action.STOP, "none"),
        ("cuda_oom", Action.STOP, "none"),
        ("disk_full", Action.STOP, "none"),
        ("no such cause", Action.RESTART_IN_PLACE, "program"),
    ],
)
def test_a_cause_names_its_first_rung(cause: str, action: Action, budget: str) -> None:
    decision = after_one(cause)
    assert (decision.action, decision.budget) == (action, budget)


def test_success_is_exit_0_that_nobody_asked_for() -> None:
    assert after_one("no_failure", exit_code=0).action is Action.COMPLETE
    asked = after_one("no_failure", exit_code=0, stop_reason="time_limit")
    assert (asked.action, asked.budget) == (Action.REQUEUE, "none")
    assert after_one("python_exception", done=True).action is Action.COMPLETE


@pytest.mark.parametrize(
    ("reason", "state"),
    [("time_limit", RunState.PENDING), ("preempted", RunState.PREEMPTED), ("drain", RunState.PENDING)],
)
def test_an_asked_stop_goes_on_without_a_budget(reason: str, state: RunState) -> None:
    decision = after_one("python_exception", stop_reason=reason, exit_code=137)
    assert (decision.action, decision.budget, decision.state) == (Action.REQUEUE, "none", state)


def test_a_persons_stop_ends_the_run() -> None:
    decision = after_one("unknown", stop_reason="user", exit_code=0)
    assert (decision.action, decision.state) == (Action.STOP, RunState.STOPPED)


def test_a_cancel_is_left_alone() -> None:
    assert after_one("user_cancelled").action is Action.LEAVE


def test_who_left_for_a_signal_of_somebody_elses_goes_on() -> None:
    """`scancel -s USR2`: exit code 0 means "saved", and nothing wants the nodes."""
    decision = after_one("no_failure", stop_reason="signal", exit_code=0)
    assert (decision.action, decision.budget, decision.exclude) == (Action.RESTART_IN_PLACE, "none", ())
    assert after_one("no_failure", stop_reason="signal", exit_code=0, script_alive=False).action is Action.REQUEUE


def test_exit_93_is_not_tried_again() -> None:
    assert after_one("nccl_timeout", exit_code=93).action is Action.STOP


@pytest.mark.parametrize("outcome", ["FailJob", "Ignore", "Count"])
def test_the_users_rules_come_first(outcome: str) -> None:
    decision = after_one("nccl_timeout", outcome=outcome)
    assert (decision.action is Action.STOP) == (outcome == "FailJob")
    assert decision.budget == {"FailJob": "none", "Ignore": "none", "Count": "program"}[outcome]


def test_the_same_cause_without_progress_climbs_at_once() -> None:
    story = Story().start_attempt().fail("nccl_timeout")
    first = decide(story.run, ending("nccl_timeout"), RETRY)
    story.decided(first).fail("nccl_timeout")
    second = decide(story.run, ending("nccl_timeout"), RETRY)
    assert second.action is Action.REQUEUE
    assert second.exclude == ("n1",), "twice the same on one node: elsewhere before a person is asked"
    story.decided(second).start_attempt().fail("nccl_timeout", node="n2")
    third = decide(story.run, ending("nccl_timeout"), RETRY)
    assert (third.action, third.state) == (Action.HOLD, RunState.HELD)


def test_progress_starts_at_the_first_rung_again() -> None:
    story = Story().start_attempt().fail("nccl_timeout", before=None, after=100)
    story.decided(decide(story.run, ending("nccl_timeout"), RETRY)).fail("nccl_timeout", before=100, after=200)
    assert decide(story.run, ending("nccl_timeout"), RETRY).action is Action.RESTART_IN_PLACE


@pytest.mark.parametrize(("after", "action"), [(200, Action.REQUEUE), (100, Action.HOLD), (None, Action.HOLD)])
def test_a_second_lost_node_is_no_reason_to_stop_where_the_run_had_come_further(
    after: int | None, action: Action
) -> None:
    story = Story().start_attempt().lose("node_fail", before=None, after=100)
    retry = dataclasses.replace(RETRY, infrastructure=3)
    story.decided(decide(story.run, ending("node_fail", script_alive=False), retry))
    story.start_attempt().lose("node_fail", before=100, after=after)
    assert decide(story.run, ending("node_fail", script_alive=False), retry).action is action


def test_another_cause_starts_at_its_first_rung() -> None:
    story = Story().start_attempt().fail("nccl_timeout")
    story.decided(decide(story.run, ending("nccl_timeout"), RETRY)).fail("native_crash")
    assert decide(story.run, ending("native_crash"), RETRY).action is Action.RESTART_IN_PLACE


def test_the_first_retry_is_immediate_the_second_waits() -> None:
    story = Story().start_attempt().fail("nccl_timeout", after=1)
    first = decide(story.run, ending("nccl_timeout"), RETRY)
    story.decided(first).fail("nccl_timeout", before=1, after=2)
    second = decide(story.run, ending("nccl_timeout"), RETRY)
    assert first.delay_s == 0
    assert 30 <= second.delay_s <= 37, "up to a quarter more, so that runs that failed together come back apart"


def test_ceilings_hold_even_with_progress() -> None:
    story = Story().start_attempt()
    seen = []
    for step in range(12):
        story.fail("native_crash", before=step, after=step + 1)
        decision = decide(story.run, ending("native_crash"), RETRY)
        seen.append(decision.action)
        story.decided(decision)
        if decision.action is Action.REQUEUE:
            story.start_attempt()
        if decision.action is Action.HOLD:
            break
    in_place, requeue, hold = Action.RESTART_IN_PLACE, Action.REQUEUE, Action.HOLD
    assert seen == [in_place, in_place, requeue, in_place, in_place, requeue, in_place, in_place, hold]


def test_infrastructure_has_a_budget_of_its_own() -> None:
    story = Story().start_attempt().fail("node_fail")
    first = decide(story.run, ending("node_fail"), RETRY)
    story.decided(first).start_attempt().fail("gpu_lost", after=5)
    second = decide(story.run, ending("gpu_lost"), RETRY)
    assert (first.action, second.action) == (Action.REQUEUE, Action.HOLD)
    story.decided(first).start_attempt().fail("native_crash", after=9)
    assert decide(story.run, ending("native_crash", script_alive=False), RETRY).action is Action.REQUEUE


def test_no_restart_in_place_without_the_script() -> None:
    assert after_one("nccl_timeout", script_alive=False).action is Action.REQUEUE


def test_attempts_of_any_kind_are_capped() -> None:
    story = Story()
    for _ in range(3):
        story.start_attempt()
    retry = dataclasses.replace(RETRY, attempts=3)
    decision = decide(story.run, ending("x", stop_reason="preempted"), retry)
    assert decision.action is Action.HOLD


def test_retries_switched_off_stop_the_run() -> None:
    retry = dataclasses.replace(RETRY, in_place=0, requeues=0)
    decision = decide(Story().start_attempt().fail("nccl_timeout").run, ending("nccl_timeout"), retry)
    assert (decision.action, decision.state) == (Action.STOP, RunState.FAILED)


def test_a_suspect_node_is_avoided_unless_the_user_says_no() -> None:
    suspects = (("n3", 0.9), ("n4", 0.2))
    assert after_one("gpu_lost", suspects=suspects).exclude == ("n3",)
    retry = dataclasses.replace(RETRY, exclude_nodes=False)
    run = Story().start_attempt().fail("gpu_lost").run
    assert decide(run, ending("gpu_lost", suspects=suspects), retry).exclude == ()


def test_a_corrupt_checkpoint_is_rolled_back_where_one_was_handed_out() -> None:
    decision = after_one("checkpoint_corrupt", resumed_from="/c/step-5")
    assert (decision.action, decision.rollback) == (Action.RESTART_IN_PLACE, True)
    assert after_one("checkpoint_corrupt").action is Action.STOP


def test_a_loss_that_is_no_number_is_rolled_back_where_there_is_a_checkpoint() -> None:
    own = Story().start_attempt().fail("nan_loss", after=40)
    assert decide(own.run, ending("nan_loss"), RETRY).rollback, "it has written that one itself"
    none = Story().start_attempt().fail("nan_loss")
    assert not decide(none.run, ending("nan_loss"), RETRY).rollback


@pytest.mark.parametrize(("after", "further"), [(140, True), (130, True), (160, False)])
@pytest.mark.parametrize("requeued", [True, False])
def test_it_is_rolled_back_further_where_the_launch_came_no_further(after: int, further: bool, requeued: bool) -> None:
    story = Story().start_attempt().fail("nan_loss", before=100, after=140)
    assert not rolled_back_in_vain(story.run)
    action, state = (Action.REQUEUE, RunState.PENDING) if requeued else (Action.RESTART_IN_PLACE, RunState.RUNNING)
    story.decided(Decision(action, state, "nan_loss", "why", rollback=True))
    story = story.start_attempt() if requeued else story
    assert rolled_back_in_vain(story.fail("nan_loss", before=120, after=after).run) is further


def test_a_diagnosis_may_say_that_no_retry_helps() -> None:
    assert after_one("cuda_illegal_access", action="stop").action is Action.STOP


def test_a_decision_has_a_plain_form() -> None:
    decision = Decision(Action.REQUEUE, RunState.PENDING, "gpu_lost", "why", "infrastructure", ("n1", "n2"), 30, True)
    assert decision_from_dict(decision_to_dict(decision)) == decision


@pytest.mark.parametrize(
    "data", [{}, {"action": "fly", "state": "Pending"}, {"action": "stop"}, {"action": None, "state": 1}]
)
def test_no_decision_is_told_as_such(data: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        decision_from_dict(data)
