"""Writing a decision down: once beside the attempt, where it binds everybody, and as an event for the journal."""

from __future__ import annotations

import time

from slurmtrain.core.decision import Decision, decision_to_dict
from slurmtrain.core.events import Decided
from slurmtrain.store.rundir import AttemptDir


def publish_decision(attempt: AttemptDir, decision: Decision, who: str, launch: int = -1) -> bool:
    """Decide about an attempt: True if this call did, False if somebody had.

    Raises ``StoreError``: then nobody acts.
    """
    after = {"launch": launch} if launch >= 0 else {}
    return attempt.publish_decision({**decision_to_dict(decision), "decided_by": who, **after, "at": time.time()})


def build_decided(attempt: int, decision: Decision, who: str) -> Decided:
    """The event of a decision about an attempt as a whole."""
    return Decided(at=time.time(), who=who, attempt=attempt, decision=decision_to_dict(decision))
