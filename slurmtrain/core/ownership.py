"""Whose decision it is. Slurm is the lock: its word about an execution names exactly one owner.

An execution is a job id and a restart count. Agent, gate and watcher ask here before they decide about one. The table
is ordered, and the first rule that fits wins: flags say more than the state they stand beside. ``core.endings`` tells
it for each way to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from slurmtrain.core.jobstate import ENDED, BaseState, JobState, StateFlag


class Owner(Enum):
    """Who decides about an execution. The words are those that journal and decisions carry."""

    AGENT = "agent"  # in the batch script of this very execution
    GATE = "gate"  # of the next execution, before it trains
    WATCHER = "watcher"  # from outside, once no script is left that could
    PERSON = "person"  # it is held: somebody has to let it go
    NOBODY = "nobody"  # not now: Slurm has it in its hands, and the next look knows more


@dataclass(frozen=True, slots=True)
class Rule:
    """``passes``: who asks from inside the job may wait for the next answer. ``final``: nobody may start it again."""

    name: str
    owner: Owner
    why: str
    flags: frozenset[StateFlag] = frozenset()
    bases: frozenset[BaseState] = frozenset()
    passes: bool = False
    final: bool = False


GONE = Rule(
    "gone", Owner.WATCHER, "Slurm has forgotten the job: accounting, or what its script wrote, tells how it ended"
)
LATER = Rule("later", Owner.GATE, "a later execution of the job exists, so Slurm or a person has queued it again")
COMES_BACK = Rule(
    "comes back", Owner.GATE, "Slurm preempted it and queues it again by itself", bases=frozenset({BaseState.PREEMPTED})
)
UNKNOWN = Rule("unknown", Owner.NOBODY, "a word that nobody here knows is neither an end nor a permission")

RULES: tuple[Rule, ...] = (
    Rule(
        "held",
        Owner.PERSON,
        "it waits under a hold that ends only when somebody releases it; its gate decides then",
        flags=frozenset({StateFlag.REQUEUE_HOLD, StateFlag.SPECIAL_EXIT, StateFlag.RESV_DEL_HOLD}),
    ),
    Rule(
        "requeued",
        Owner.GATE,
        "it is on its way back into the queue",
        flags=frozenset({StateFlag.REQUEUED, StateFlag.REQUEUE_FED}),
    ),
    Rule(
        "elsewhere",
        Owner.NOBODY,
        "another cluster of the federation runs it",
        flags=frozenset({StateFlag.REVOKED}),
    ),
    Rule(
        "leaving",
        Owner.NOBODY,
        "Slurm or a person has ended it already, which the word hides: a requeue now would revive a cancelled job",
        flags=frozenset({StateFlag.COMPLETING, StateFlag.STAGE_OUT}),
    ),
    Rule(
        "passing",
        Owner.NOBODY,
        "the word stands for a moment only, or for as long as nobody runs who could ask",
        flags=frozenset(
            {
                StateFlag.SIGNALING,
                StateFlag.RESIZING,
                StateFlag.CONFIGURING,
                StateFlag.STOPPED,
                StateFlag.POWER_UP_NODE,
                StateFlag.RECONFIG_FAIL,
                StateFlag.LAUNCH_FAILED,
                StateFlag.EXPEDITING,
            }
        ),
        bases=frozenset({BaseState.SUSPENDED}),
        passes=True,
    ),
    Rule("running", Owner.AGENT, "its script runs, and Slurm has not ended it", bases=frozenset({BaseState.RUNNING})),
    Rule("waiting", Owner.GATE, "it will start again, and its gate comes first", bases=frozenset({BaseState.PENDING})),
    Rule(
        "cancelled",
        Owner.WATCHER,
        "a person has decided: it is written down, and nobody starts it again",
        bases=frozenset({BaseState.CANCELLED}),
        final=True,
    ),
    Rule("ended", Owner.WATCHER, "no script of it is left", bases=ENDED - {BaseState.CANCELLED}),
)


def find_rule(state: JobState | None, *, requeue: bool = False, later: bool = False) -> Rule:
    """The rule for an execution of which Slurm says ``state``; None where Slurm no longer knows the job.

    ``requeue``: Slurm may queue the job again by itself. ``later``: Slurm speaks of a later execution of the same job.
    """
    if later:
        return LATER
    if state is None:
        return GONE
    if requeue and state.base is BaseState.PREEMPTED and not state.flags:
        return COMES_BACK
    return next((rule for rule in RULES if state.flags & rule.flags or state.base in rule.bases), UNKNOWN)


def may_decide(who: Owner, state: JobState | None, *, requeue: bool = False, later: bool = False) -> bool:
    """Whether ``who`` owns the decision about this execution."""
    return find_rule(state, requeue=requeue, later=later).owner is who
