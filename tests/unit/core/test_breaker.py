"""Runs that fail alike wait for one of them."""

from __future__ import annotations

import dataclasses

import pytest

from slurmtrain.core.breaker import Failing, wait_for_probe
from slurmtrain.core.decision import Action, Decision, RunState, decision_from_dict, decision_to_dict
from slurmtrain.core.spec import Retry

REQUEUE = Decision(Action.REQUEUE, RunState.PENDING, "gpu_lost", "a GPU is gone", "infrastructure")
FIVE = [Failing(f"r{n}", 1000.0 + n, 2000.0 + n) for n in range(5)]


def test_the_fifth_waits_and_the_first_tries() -> None:
    waits = wait_for_probe(REQUEUE, "r4", FIVE, Retry(), 2010)
    assert (waits.delay_s, waits.waits_for, waits.action) == (600, "r0", Action.REQUEUE)
    assert "5 runs failed so within 10 min, and r0 tries first" in waits.reason
    assert wait_for_probe(REQUEUE, "r0", FIVE, Retry(), 2010) == REQUEUE
    assert decision_from_dict(decision_to_dict(waits)) == waits


@pytest.mark.parametrize(
    ("retry", "failing", "now"),
    [
        (Retry(), FIVE[:4], 2010),
        (Retry(breaker_runs=0), FIVE, 2010),
        (Retry(breaker_runs=6), FIVE, 2010),
        (Retry(), FIVE, 3000),  # long ago
        (Retry(), [*FIVE[:4], dataclasses.replace(FIVE[4], last=9e9)], 2010),  # a clock that is wrong
    ],
)
def test_fewer_or_older_ones_do_not_count(retry: Retry, failing: list[Failing], now: float) -> None:
    assert wait_for_probe(REQUEUE, "r4", failing, retry, now) == REQUEUE


@pytest.mark.parametrize(
    "decision",
    [
        dataclasses.replace(REQUEUE, budget="program"),
        dataclasses.replace(REQUEUE, budget="none"),
        dataclasses.replace(REQUEUE, action=Action.HOLD),
        dataclasses.replace(REQUEUE, action=Action.RESTART_IN_PLACE),
    ],
)
def test_only_a_requeue_for_the_infrastructure_waits(decision: Decision) -> None:
    assert wait_for_probe(decision, "r4", FIVE, Retry(), 2010) == decision
