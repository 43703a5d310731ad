"""What a run has used of the ceilings of its ladder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmtrain.core.budget import allocated_gpus, count_in_place, count_requeues, deadline_at, retry_hours
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Retry, Spec
from slurmtrain.ops.timeline import as_time


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """How much of one ceiling is used. ``allowed`` is None where the run's plan cannot be read.

    ``requeues:CAUSE`` and ``in_place:CAUSE`` are a cause's own; ``GPU_hours`` (``node_hours``) what retries have cost;
    ``hours`` the time since submission, against the deadline.
    """

    name: str
    used: float
    allowed: float | None


def count_budgets(state: Run, spec: Spec | None, now: float) -> tuple[BudgetUse, ...]:
    """What the ladder has used of its ceilings, as ``core.policy`` counts; caps only where the job sets them."""
    retry = spec.retry if spec else None
    counted = retry or Retry()
    uses = [
        BudgetUse("in_place", count_in_place(state, counted), retry.in_place if retry else None),
        BudgetUse("requeues", count_requeues(state, counted, "program"), retry.requeues if retry else None),
        BudgetUse(
            "infrastructure", count_requeues(state, counted, "infrastructure"), retry.infrastructure if retry else None
        ),
        BudgetUse("attempts", len(state.attempts), retry.attempts if retry else None),
    ]
    return (*uses, *(_own_budgets(state, spec, now) if spec else ()))


def _own_budgets(state: Run, spec: Spec, now: float) -> Iterator[BudgetUse]:
    for cause, own in spec.retry.causes.items():
        if "requeues" in own:
            yield BudgetUse(f"requeues:{cause}", count_requeues(state, spec.retry, "program", cause), own["requeues"])
        if "in_place" in own:
            yield BudgetUse(f"in_place:{cause}", count_in_place(state, spec.retry, cause), own["in_place"])
    if spec.retry.max_gpu_hours is not None:
        cost = round(retry_hours(state, spec.resources), 4)
        yield BudgetUse(allocated_gpus(spec.resources)[1].replace(" ", "_"), cost, spec.retry.max_gpu_hours)
    end = deadline_at(spec.retry.deadline, state)
    begun = as_time(state.created.at) if state.created is not None else None
    if end is not None and begun is not None:
        yield BudgetUse("hours", round((now - begun) / 3600, 1), round((end - begun) / 3600, 1))
