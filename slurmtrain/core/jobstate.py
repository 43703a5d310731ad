"""Slurm's job states: a base state and flags. Text commands print one word; a word nobody knows is never an end.

Source: ``slurm/slurm.h`` and ``job_state_string`` of 20.11 to 26.05 (see docs/slurm.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class BaseState(Enum):
    """What a job is. The same twelve words in every Slurm from 20.11 to 26.05."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"


class StateFlag(Enum):
    """What is happening to a job beside its base state."""

    REQUEUED = "REQUEUED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    REQUEUE_FED = "REQUEUE_FED"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    RESIZING = "RESIZING"
    CONFIGURING = "CONFIGURING"
    COMPLETING = "COMPLETING"
    STOPPED = "STOPPED"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    POWER_UP_NODE = "POWER_UP_NODE"
    REVOKED = "REVOKED"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    EXPEDITING = "EXPEDITING"


ENDED = frozenset(
    {
        BaseState.COMPLETED,
        BaseState.CANCELLED,
        BaseState.FAILED,
        BaseState.TIMEOUT,
        BaseState.NODE_FAIL,
        BaseState.PREEMPTED,
        BaseState.BOOT_FAIL,
        BaseState.DEADLINE,
        BaseState.OUT_OF_MEMORY,
    }
)
RETURNING_TO_QUEUE = frozenset(
    {StateFlag.REQUEUED, StateFlag.REQUEUE_HOLD, StateFlag.REQUEUE_FED, StateFlag.SPECIAL_EXIT, StateFlag.RESV_DEL_HOLD}
)
NOT_YET_OVER = frozenset({StateFlag.COMPLETING, StateFlag.STAGE_OUT, StateFlag.CONFIGURING, StateFlag.RESIZING})


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state as far as one answer of Slurm tells it.

    ``base`` is None where the text showed only a flag (COMPLETING hides what comes after) or an unknown word;
    ``word`` is what Slurm printed.
    """

    base: BaseState | None
    flags: frozenset[StateFlag] = field(default_factory=frozenset)
    word: str = ""

    def __str__(self) -> str:
        return self.word or (self.base.value if self.base else "UNKNOWN")


UNKNOWN = JobState(None, frozenset(), "UNKNOWN")


def parse_job_state(text: str) -> JobState:
    """Read one word of squeue or sacct (``CANCELLED by 1000`` counts as its first word); never raises."""
    words = text.split()
    word = words[0].rstrip("+").upper() if words else ""
    if word in BaseState.__members__:
        return JobState(BaseState[word], frozenset(), word)
    if word in StateFlag.__members__:
        flag = StateFlag[word]
        base = BaseState.PENDING if flag in RETURNING_TO_QUEUE else None
        return JobState(base, frozenset({flag}), word)
    return JobState(None, frozenset(), word[:40] or "UNKNOWN")


def is_running(state: JobState) -> bool:
    """Exactly RUNNING, nothing beside it: the only state in which the batch script may decide."""
    return state.base is BaseState.RUNNING and not state.flags


def is_waiting(state: JobState) -> bool:
    """In the queue or on the way back to it; it will start (again) unless somebody holds or cancels it."""
    return state.base is BaseState.PENDING and StateFlag.COMPLETING not in state.flags


def is_held(state: JobState) -> bool:
    """Back in the queue under a hold that nobody releases by itself."""
    return bool(state.flags & {StateFlag.REQUEUE_HOLD, StateFlag.SPECIAL_EXIT, StateFlag.RESV_DEL_HOLD})


def is_terminal(state: JobState, *, requeue: bool) -> bool:
    """Whether Slurm will leave this job as it is; an unknown state never is.

    ``requeue`` says whether the job may be requeued by Slurm itself: such a PREEMPTED job comes back.
    """
    if state.flags & (RETURNING_TO_QUEUE | NOT_YET_OVER):
        return False
    if state.base is BaseState.PREEMPTED:
        return not requeue
    return state.base in ENDED
