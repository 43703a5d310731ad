"""Masking with what is known of a run: the secrets of its own environment and command line, wherever they occur."""

from __future__ import annotations

from itertools import pairwise

from slurmtrain.core.spec import Spec
from slurmtrain.evidence.secrets import Masker, is_secret


def make_masker(spec: Spec | None) -> Masker:
    """For what is shown or handed on of a run with this spec."""
    if spec is None:
        return Masker()
    words = list(spec.command)
    known = {value for option, value in pairwise(words) if _gives(option, value)}
    known |= {word.partition("=")[2] for word in words if "=" in word and _gives(*word.split("=", 1))}
    return Masker({name: str(value) for name, value in spec.environment.variables.items()}, known)


def _gives(option: str, value: str) -> bool:
    return is_secret(option.lstrip("-"), value) and not value.startswith("-")
