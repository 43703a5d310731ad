"""What interrupts a run and is no failure (preemption, time limit, a draining node, a maintenance), and its work."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from slurmtrain.core.decision import Decision
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.policy import CONTINUES
from slurmtrain.core.run import Attempt, Launch, Run
from slurmtrain.ops.timeline import as_time

_WORDS = {
    "preempted": "preempted: Slurm gave its nodes to another job",
    "time_limit": "its time limit came",
    "drain": "a node drains",
    "maintenance": "a maintenance comes",
}


@dataclass(frozen=True, slots=True)
class Interruption:
    """``what`` happened and what became of the ``work``, each a line for a person; ``at``: when the training ended."""

    cause: str
    attempt: int
    at: float | None
    what: str
    work: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_interruption(trouble: Diagnosis | None) -> bool:
    """Whether a diagnosis speaks of no failure: the lines of srun and torch that came with it explain nothing."""
    return trouble is not None and trouble.cause in CONTINUES


def find_interruption(state: Run, trouble: Diagnosis | None, where: tuple[int, int] | None) -> Interruption | None:
    """The newest one, unless the run has failed since then: ``trouble`` in attempt and launch ``where``."""
    for attempt in reversed(state.attempts):
        decision = _decision_of(attempt)
        if decision is None or decision.cause not in CONTINUES:
            continue
        launch = attempt.launches[-1] if attempt.launches else None
        if where is not None and not is_interruption(trouble) and _is_newer(where, attempt.number, launch):
            return None
        return _tell(state, attempt, launch, decision.cause)
    return None


def _decision_of(attempt: Attempt) -> Decision | None:
    made = [launch.decision for launch in attempt.launches if launch.decision is not None]
    return attempt.decision or (made[-1] if made else None)


def _is_newer(where: tuple[int, int], attempt: int, launch: Launch | None) -> bool:
    return where[0] > attempt or (where[0] == attempt and (where[1] < 0 or launch is None or where[1] >= launch.number))


def _tell(state: Run, attempt: Attempt, launch: Launch | None, cause: str) -> Interruption:
    ended = launch.ended if launch is not None else None
    at = as_time(ended.at if ended is not None else attempt.ended.at if attempt.ended is not None else None)
    what = (launch.stop.detail if launch is not None and launch.stop is not None else "") or _WORDS[cause]
    what += f"; attempt {attempt.number} ended"
    what += f" at {time.strftime('%H:%M:%S on %d %b', time.localtime(at))}" if at is not None else ""
    what += f", at step {ended.step}" if ended is not None and ended.step is not None else ""
    saved = ended.saved if ended is not None else ""
    parts = [part for part in (saved, _resumed(state, attempt.number)) if part]
    work = "; ".join(parts) or "what it saved is not written down: `slurmtrain checkpoints` shows what there is"
    return Interruption(cause, attempt.number, at, what, work)


def _resumed(state: Run, number: int) -> str:
    """What the next launch began with, once there is one."""
    later = (a for a in state.attempts if a.number > number)
    begun = next(((a, x.started) for a in later for x in a.launches if x.started is not None), None)
    if begun is None:
        return ""
    attempt, started = begun
    name = str(started.resume_from or "").rpartition("/")[2]
    return f"attempt {attempt.number} " + (f"resumed from {name}" if name else "began without a checkpoint")
