"""Lengths of time in words."""

from __future__ import annotations

from itertools import pairwise


def describe_seconds(seconds: float) -> str:
    """``12 s``, ``3 min``, ``4 h 2 min``, ``2 d 4 h``: as exact as a person needs it."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


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
