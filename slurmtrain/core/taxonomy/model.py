"""What one cause of the taxonomy is."""

from __future__ import annotations

from dataclasses import dataclass

ACTIONS = ("requeue", "requeue-exclude-node", "rollback-checkpoint", "stop", "none")
CLASSES = ("transient", "node-bad", "needs-change", "permanent", "none")
RUNGS = ("in_place", "requeue", "requeue_exclude", "rollback", "stop", "none")


@dataclass(frozen=True, slots=True)
class Cause:
    """A leaf of the failure taxonomy.

    `klass`, `retryable` and `action` are the defaults; a diagnosis may carry an override, with its reason.
    `infrastructure` causes use the infrastructure budget, never the user's.
    """

    name: str
    family: str
    klass: str
    retryable: bool
    action: str
    first_rung: str
    infrastructure: bool
    summary: str
    advice: str


def _cause(
    name: str, family: str, klass: str, action: str, rung: str, summary: str, advice: str, *, infrastructure: bool
) -> Cause:
    retryable = action not in ("stop", "none")
    return Cause(name, family, klass, retryable, action, rung, infrastructure, summary, advice)


def transient(name: str, family: str, rung: str, summary: str, advice: str, *, infrastructure: bool = False) -> Cause:
    """A passing fault: the same job may succeed when it is tried again."""
    return _cause(name, family, "transient", "requeue", rung, summary, advice, infrastructure=infrastructure)


def node_bad(name: str, family: str, summary: str, advice: str) -> Cause:
    """A fault of the machine: try again, elsewhere."""
    return _cause(
        name, family, "node-bad", "requeue-exclude-node", "requeue_exclude", summary, advice, infrastructure=True
    )


def needs_change(name: str, family: str, summary: str, advice: str) -> Cause:
    """Fails again until a person changes the request or the set-up."""
    return _cause(name, family, "needs-change", "stop", "stop", summary, advice, infrastructure=False)


def permanent(name: str, family: str, summary: str, advice: str) -> Cause:
    """Deterministic: every retry is wasted."""
    return _cause(name, family, "permanent", "stop", "stop", summary, advice, infrastructure=False)


def rollback(name: str, family: str, summary: str, advice: str) -> Cause:
    """Curable by an older checkpoint."""
    return _cause(
        name, family, "needs-change", "rollback-checkpoint", "rollback", summary, advice, infrastructure=False
    )


def nothing(name: str, family: str, summary: str, advice: str) -> Cause:
    """Nothing to do, or nothing that may be done."""
    return _cause(name, family, "none", "none", "none", summary, advice, infrastructure=False)
