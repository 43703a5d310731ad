"""The limits of ``slurmtrain prune``, on the command line and in ``[prune]`` of a settings file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from slurmtrain.config.nodes import Place, shown
from slurmtrain.config.problems import Problems, closest

_AGE = re.compile(r"([1-9][0-9]{0,5})([hdw])", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([KMGTP])(?:i?B)?", re.ASCII | re.IGNORECASE)
_HOURS = {"h": 1, "d": 24, "w": 168}


def parse_age(text: str) -> int:
    """Seconds of ``48h``, ``30d``, ``8w``. Raises ``ValueError``."""
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{shown(text, 40)} is no age; write hours, days or weeks, like 48h, 30d or 8w")
    return int(found[1]) * _HOURS[found[2]] * 3600


def parse_size(text: str) -> int:
    """Bytes of ``500G``, ``1.5T``. Raises ``ValueError``."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{shown(text, 40)} is no size; write a number with K, M, G, T or P, like 500G")
    return int(float(found[1]) * 1024 ** ("KMGTP".index(found[2].upper()) + 1))


def parse_count(text: str) -> int:
    """A number of runs. Raises ``ValueError``."""
    if not re.fullmatch(r"[1-9][0-9]{0,6}", text.strip(), re.ASCII):
        raise ValueError(f"{shown(text, 40)} is no number of runs; write one from 1 on")
    return int(text)


LIMITS: Mapping[str, Callable[[str], int]] = {
    "older_than": parse_age,
    "max_size": parse_size,
    "keep_last": parse_count,
}


def read_limits(table: Any, place: Place, problems: Problems) -> dict[str, int]:
    """``[prune]`` of one settings file; what is wrong is added to ``problems``."""
    if not isinstance(table, dict):
        problems.add(place, "prune", "expected a table, like [prune] and older_than = '30d'")
        return {}
    limits = {}
    for key, value in table.items():
        parse = LIMITS.get(key)
        if parse is None:
            near = closest(key, LIMITS)
            hint = f"; did you mean {near!r}?" if near else f"; expected one of {', '.join(LIMITS)}"
            problems.add(place, f"prune.{key}" if key.isidentifier() else "prune", f"unknown key{hint}")
            continue
        try:
            limits[key] = parse(str(value))
        except ValueError as exc:
            problems.add(place, f"prune.{key}", str(exc))
    return limits
