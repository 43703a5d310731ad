"""An order in which whatever was reached when the time is over is an even sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
_FEW = 100
_GOLDEN = 0.6180339887


def spread(items: Sequence[T]) -> Iterator[T]:
    """Each of them once, neighbours far apart in time; few of them in their order."""
    count = len(items)
    if count <= _FEW:
        yield from items
        return
    stride = next(n for n in range(round(count * _GOLDEN), count) if math.gcd(n, count) == 1)
    for number in range(count):
        yield items[number * stride % count]
