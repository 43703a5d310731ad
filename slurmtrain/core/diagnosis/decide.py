"""From facts and findings to one diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.core.causes import get_cause
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Findings


def diagnose(facts: Facts, findings: Sequence[Findings]) -> Diagnosis:
    """What happened first, where, and whether a retry can help."""
    cause = get_cause("unknown" if facts.state not in (None, "COMPLETED") else "no_failure")
    return Diagnosis(cause.name, cause.family, cause.retryable, cause.action, first_rung=cause.first_rung)
