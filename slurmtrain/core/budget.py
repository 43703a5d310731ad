"""What retries have cost and may cost: counts by kind and by cause, GPU hours, the deadline of the run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from datetime import datetime

from slurmtrain.core.decision import Action, Budget
from slurmtrain.core.run import Attempt, Launch, Run
from slurmtrain.core.spec import Resources, Retry

_GRES_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:,()]+)?:(\d{1,5})")
_DURATION_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def retry_for(retry: Retry, cause: str) -> Retry:
    """The ceilings that hold for one cause: its own where the job gives some, the run's otherwise."""
    own = retry.causes.get(cause, {})
    changes = {key: own[key] for key in ("in_place", "requeues", "delay_s") if key in own}
    if "requeues" in own:
        changes["infrastructure"] = own["requeues"]
    return dataclasses.replace(retry, **changes) if changes else retry


def has_own(retry: Retry, cause: str, key: str) -> bool:
    return key in retry.causes.get(cause, {})


def count_requeues(run: Run, retry: Retry, budget: Budget, cause: str | None = None) -> int:
    """Requeues that a budget has paid for. A cause with ``requeues`` of its own has a budget of its own: what it uses
    counts there (``cause``) and nowhere else."""
    made = [a.decision for a in run.attempts if a.decision and a.decision.action is Action.REQUEUE]
    if cause is not None and has_own(retry, cause, "requeues"):
        return sum(d.cause == cause and d.budget != "none" for d in made)
    return sum(d.budget == budget and not has_own(retry, d.cause, "requeues") for d in made)


def count_in_place(run: Run, retry: Retry, cause: str | None = None) -> int:
    """Restarts in place of the last attempt: of a cause with ``in_place`` of its own, or of all others."""
    made = [launch.decision for launch in (run.attempts[-1].launches if run.attempts else ()) if launch.decision]
    if cause is not None and has_own(retry, cause, "in_place"):
        return sum(d.cause == cause for d in made)
    return sum(not has_own(retry, d.cause, "in_place") for d in made)


def allocated_gpus(resources: Resources) -> tuple[int, str]:
    """How many GPUs a job of these resources holds, and the word for them; nodes where it asks for no GPU."""
    per_node = resources.gpus_per_node
    if per_node is None and resources.gres:
        per_node = sum(int(number) for number in _GRES_GPUS.findall(resources.gres))
    if not per_node:
        return resources.nodes, "node hours"
    return resources.nodes * per_node, "GPU hours"


def retry_hours(run: Run, resources: Resources) -> float:
    """GPU hours (node hours without GPUs) that retries have cost.

    Counted is the allocation, idle or not, of every launch after the first failure that failed again and left nothing
    newer behind: from the end of the launch before it in the same attempt, or from the start of its attempt. What runs
    after a failure and makes progress, or ends because it was asked to, is work, not cost.
    """
    units, _ = allocated_gpus(resources)
    return units * sum(_seconds_of_retries(run)) / 3600


def _seconds_of_retries(run: Run) -> Iterator[float]:
    failed_before = False
    for attempt in run.attempts:
        begun = attempt.started.at if attempt.started else None
        for launch in attempt.launches:
            ended = _end_of(attempt, launch)
            failed = _has_failed(attempt, launch)
            if failed_before and failed and not _left_more(launch) and begun is not None and ended is not None:
                yield max(0.0, ended - begun)
            failed_before = failed_before or failed
            begun = ended if ended is not None else begun
        if not attempt.launches and attempt.diagnosis is not None:
            if failed_before and begun is not None and attempt.ended is not None:
                yield max(0.0, attempt.ended.at - begun)
            failed_before = True


def _end_of(attempt: Attempt, launch: Launch) -> float | None:
    if launch.ended is not None:
        return launch.ended.at
    return attempt.ended.at if attempt.ended is not None else None


def _has_failed(attempt: Attempt, launch: Launch) -> bool:
    if launch.ended is None:
        return launch is attempt.launches[-1] and attempt.diagnosis is not None
    return launch.diagnosis is not None and launch.ended.stop_reason is None


def _left_more(launch: Launch) -> bool:
    """A checkpoint newer than the one it began with."""
    before = launch.started.progress if launch.started else None
    after = launch.ended.progress if launch.ended else None
    return after is not None and (before is None or after > before)


def deadline_at(text: str | None, run: Run) -> float | None:
    """``retry.deadline`` as seconds since the epoch: a date with its zone, or a duration since the run was created.

    None without one, or where it cannot be told.
    """
    if not text:
        return None
    if (match := re.fullmatch(r"(\d{1,9})([mhdw])", text)) is not None:
        return run.created.at + int(match[1]) * _DURATION_S[match[2]] if run.created else None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
