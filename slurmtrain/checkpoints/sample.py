"""An order in which whatever was reached when the time is over is an even sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_GOLDEN = 0.6180339887


def spread(items: Sequence[T]) -> Iterator[T]:
    """Each of them once, neighbours far apart in time."""
    count = len(items)
    stride = next(n for n in range(max(1, round(count * _GOLDEN)), count + 2) if math.gcd(n, count) in (0, 1))
    for number in range(count):
        yield items[number * stride % count]
