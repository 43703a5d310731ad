"""The one call of the engine: facts and findings in, one diagnosis out."""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.core.diagnosis.decide import diagnose
from slurmtrain.core.diagnosis.model import Diagnosis, EvidenceLine, Suspect
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.findings import Finding, Findings

__all__ = ["Diagnosis", "EvidenceLine", "Facts", "Finding", "Findings", "RankExit", "Sequence", "Suspect", "diagnose"]
