"""Lengths of time in words."""

from __future__ import annotations

from itertools import pairwise


def say_duration(seconds: float | None) -> str:
    """``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``: with its two greatest units; "" where it is not known."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (size, word), (small, small_word) in pairwise(units):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size} {word}" + (f" {rest} {small_word}" if rest else "")
    return f"{whole} s"
