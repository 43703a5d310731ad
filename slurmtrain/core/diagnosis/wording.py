"""The sentence for a person."""

from __future__ import annotations

from slurmtrain.core.causes import get_cause

MAX_QUOTE = 160


def where(rank: int | None, node: str | None) -> str:
    """``on rank 3 (node n1)``, as far as it is known."""
    if rank is not None and node is not None:
        return f" on rank {rank} (node {node})"
    if rank is not None:
        return f" on rank {rank}"
    return f" on node {node}" if node is not None else ""


def sentence(cause: str, rank: int | None, node: str | None, quote: str | None, *, suspected: bool = False) -> str:
    """One sentence: what happened, where, and the line that says so; `suspected`: another rank printed that line."""
    place = where(rank, node)
    text = get_cause(cause).summary + (", the suspect is" + place.removeprefix(" on") if suspected else place)
    text = text[0].upper() + text[1:]
    if quote:
        short = quote if len(quote) <= MAX_QUOTE else quote[: MAX_QUOTE - 1] + "…"
        return f"{text}: {short}"
    return text + "."
