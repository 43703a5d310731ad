"""Numbers of bytes in words."""

from __future__ import annotations


def say_size(size: int) -> str:
    """``12 B``, ``3 MiB``, ``1.2 GiB``, ``120 TiB``: two digits at least, but for a whole number of them."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while value >= 1024 and unit != "TiB":
        value /= 1024
        unit = next(units, "TiB")
    return f"{value:.1f}".removesuffix(".0") + f" {unit}" if value < 10 else f"{value:.0f} {unit}"
