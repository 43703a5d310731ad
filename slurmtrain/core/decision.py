"""What can be decided about a launch or an attempt that ended, as one value with a plain JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal


class RunState(Enum):
    """Where a run stands. Not a Slurm state: a run outlives its jobs. The words are Cloud.ru's, plus Held."""

    PENDING = "Pending"  # accepted, not in Slurm's queue (also: waiting for a retry)
    INQUEUE = "Inqueue"  # Slurm: PENDING
    STARTING = "Starting"  # allocated, not all nodes reported
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"  # by the user or by us
    PREEMPTED = "Preempted"  # passes when continued
    TERMINATED = "Terminated"  # ended by force from outside
    HELD = "Held"  # ours: nothing waits in the queue until somebody releases the run


ENDED_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.STOPPED, RunState.TERMINATED})


class Action(Enum):
    """The rungs of the ladder, and the ends."""

    COMPLETE = "complete"
    RESTART_IN_PLACE = "restart_in_place"
    REQUEUE = "requeue"  # same job id; a new job of the same run where Slurm no longer knows the job
    HOLD = "hold"
    STOP = "stop"
    LEAVE = "leave"  # somebody else decided (scancel): nothing is done


Budget = Literal["none", "program", "infrastructure"]
RETRIES = frozenset({Action.RESTART_IN_PLACE, Action.REQUEUE})


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and why, in a sentence for a person.

    ``state`` is where the run stands once this is decided. ``exclude`` are nodes to keep out of the next attempt,
    ``delay_s`` how long to wait, ``rollback`` that the newest checkpoint is to be set aside first.
    """

    action: Action
    state: RunState
    cause: str
    reason: str
    budget: Budget = "none"
    exclude: tuple[str, ...] = ()
    delay_s: int = 0
    rollback: bool = False
    waits_for: str = ""  # another run, which failed alike and tries first


def decision_to_dict(decision: Decision) -> dict[str, Any]:
    return {
        "action": decision.action.value,
        "state": decision.state.value,
        "cause": decision.cause,
        "reason": decision.reason,
        "budget": decision.budget,
        "exclude": list(decision.exclude),
        "delay_s": decision.delay_s,
        "rollback": decision.rollback,
        **({"waits_for": decision.waits_for} if decision.waits_for else {}),
    }


def decision_from_dict(data: Mapping[str, Any]) -> Decision:
    """Inverse of ``decision_to_dict``. Raises ``ValueError`` for a decision this version does not know."""
    try:
        return Decision(
            action=Action(data["action"]),
            state=RunState(data["state"]),
            cause=str(data.get("cause", "unknown")),
            reason=str(data.get("reason", "")),
            budget=data.get("budget", "none"),
            exclude=tuple(str(node) for node in data.get("exclude", ())),
            delay_s=int(data.get("delay_s", 0)),
            rollback=bool(data.get("rollback", False)),
            waits_for=str(data.get("waits_for", "")),
        )
    except (KeyError, TypeError) as exc:
        raise ValueError(f"not a decision: {exc}") from exc
