"""Applying the group breaker to a decision, and seeing whether the run that tries first goes on well."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.checkpoints.find import find_newest
from slurmtrain.core.breaker import applies_to, wait_for_probe
from slurmtrain.core.decision import Action, Decision
from slurmtrain.core.run import fold
from slurmtrain.core.spec import Spec
from slurmtrain.errors import SlurmtrainError
from slurmtrain.store.breaker import forget_failing, note_failing, read_failing
from slurmtrain.store.journal import read_journal
from slurmtrain.store.rundir import RUN_ID, RunDir

WELL_AFTER_S = 120.0  # a launch that runs for so long is well where there is no checkpoint to tell


def with_breaker(run: RunDir, spec: Spec, decision: Decision, now: float) -> Decision:
    """The decision, with a wait where other runs of the store failed alike. Never raises."""
    store = run.path.parent.parent
    if decision.action in {Action.HOLD, Action.STOP, Action.COMPLETE}:
        forget_failing(store, decision.cause, run.run_id)
    if not applies_to(decision, spec.retry):
        return decision
    note_failing(store, decision.cause, run.run_id, now)
    return wait_for_probe(decision, run.run_id, read_failing(store, decision.cause, now), spec.retry, now)


def probe_is_well(store: Path, decision: Decision, now: float) -> bool:
    """Whether the run that this decision waits for has come further, or does not try any more."""
    if not RUN_ID.fullmatch(decision.waits_for):
        return True
    probe = RunDir(store / "runs" / decision.waits_for)
    try:
        state, spec = fold(read_journal(probe.journal)), probe.read_plan().spec
    except SlurmtrainError:
        return True
    launch = state.last_launch
    if state.ended or state.state.value == "Held":
        return True
    if launch is None or launch.started is None or launch.ended is not None:
        return False
    if launch.started.at < now - WELL_AFTER_S:
        return True
    newest = find_newest(probe.path, spec.checkpoint)
    before = launch.started.progress
    return newest is not None and newest.step is not None and (before is None or newest.step > before)
