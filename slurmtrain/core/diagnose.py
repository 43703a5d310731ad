"""The one call of the engine: facts and findings in, one diagnosis out."""

from __future__ import annotations

from slurmtrain.core.diagnosis.decide import diagnose
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts

__all__ = ["Diagnosis", "Facts", "diagnose"]
