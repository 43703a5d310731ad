"""The group breaker: runs of one store that fail alike within minutes wait, and one of them tries first."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from slurmtrain.core.decision import Action, Decision
from slurmtrain.core.spec import Retry


@dataclass(frozen=True, slots=True)
class Failing:
    """A run that failed by a cause of the infrastructure: for the first and the last time (seconds since the epoch)."""

    run_id: str
    first: float
    last: float


def applies_to(decision: Decision, retry: Retry) -> bool:
    """Only a requeue for a failure of nodes or network: what a program does wrong tells nothing about others."""
    return decision.action is Action.REQUEUE and decision.budget == "infrastructure" and retry.breaker_runs > 0


def wait_for_probe(decision: Decision, run_id: str, failing: Sequence[Failing], retry: Retry, now: float) -> Decision:
    """The decision as it is, or with a wait for the run that tries first: the one that has failed for the longest.

    ``failing`` are the runs that failed by the same cause, this one included.
    """
    alike = [f for f in failing if now - retry.breaker_s <= f.last <= now + 60]
    if not applies_to(decision, retry) or len({f.run_id for f in alike}) < retry.breaker_runs:
        return decision
    probe = min(alike, key=lambda f: (f.first, f.run_id)).run_id
    if probe == run_id:
        return decision
    why = f"{len(alike)} runs failed so within {retry.breaker_s // 60} min, and {probe} tries first"
    return dataclasses.replace(
        decision,
        reason=f"{decision.reason}; {why}",
        delay_s=max(decision.delay_s, retry.breaker_s),
        waits_for=probe,
    )
