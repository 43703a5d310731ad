"""Numbers of bytes in words."""

from __future__ import annotations


def say_size(size: int) -> str:
    """``12 B``, ``3 MiB``, ``1.2 TiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
