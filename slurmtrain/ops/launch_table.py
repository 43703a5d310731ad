"""Every launch of a run as a row of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.run import Attempt, Launch, Run
from slurmtrain.ops.timeline import as_time


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch (``launch`` None: an attempt without one), as a line of a table."""

    attempt: int
    launch: int | None
    job_id: str
    nodes: str
    started_at: float | None
    duration_s: float | None
    outcome: str
    cause: str | None
    rank: int | None
    node: str | None
    decision: str


def read_diagnosis(data: Mapping[str, Any]) -> Diagnosis:
    """A diagnosis of the journal; what cannot be read of it is left out."""
    bare = {"cause": str(data.get("cause", "unknown"))[:60], "sentence": str(data.get("sentence", ""))}
    whole = {"family": "unknown", "retryable": False, "action": "none", **data, **bare}
    try:
        return Diagnosis.from_dict(whole)
    except (TypeError, ValueError, KeyError, AttributeError):
        return Diagnosis.from_dict({"family": "unknown", "retryable": False, "action": "none", **bare})


def build_launch_table(state: Run) -> list[LaunchRow]:
    rows = []
    for attempt in state.attempts:
        rows += [_launch_row(attempt, launch) for launch in attempt.launches] or [_launch_row(attempt, None)]
    return rows


def _launch_row(attempt: Attempt, launch: Launch | None) -> LaunchRow:
    last = launch is None or launch is attempt.launches[-1]
    decision = launch.decision if launch is not None and launch.decision else attempt.decision if last else None
    data = launch.diagnosis if launch is not None and launch.diagnosis else attempt.diagnosis if last else None
    trouble = read_diagnosis(data) if data is not None else None
    started = launch.started if launch else attempt.started
    return LaunchRow(
        attempt=attempt.number,
        launch=launch.number if launch else None,
        job_id=str(attempt.started.job_id) if attempt.started else "",
        nodes=str(attempt.started.nodes) if attempt.started else "",
        started_at=as_time(started.at) if started else None,
        duration_s=as_time(launch.ended.duration_s) if launch and launch.ended else None,
        outcome=_outcome(attempt, launch),
        cause=trouble.cause if trouble else None,
        rank=trouble.rank if trouble else None,
        node=trouble.node if trouble else None,
        decision=decision.action.value.replace("_", " ") if decision else "",
    )


def _outcome(attempt: Attempt, launch: Launch | None) -> str:
    if launch is None:
        return str(attempt.ended.state) if attempt.ended else "no launch"
    if launch.ended is None:
        return str(attempt.ended.state) if attempt.ended else "lost" if attempt.decision else "running"
    if launch.ended.done:
        return "finished"
    asked = f" after {launch.ended.stop_reason}" if launch.ended.stop_reason else ""
    if asked and launch.stop is not None and launch.stop.detail:
        asked += f" ({launch.stop.detail})"
    asked += f"; {launch.ended.saved}" if launch.ended.saved else ""
    return f"exit {launch.ended.exit_code}{asked}"
