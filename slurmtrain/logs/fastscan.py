"""The quick filter by hyperscan, where it is installed: the same positions as `re` finds, at gigabytes per second.

Only this module knows hyperscan; the agent never imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.matcher import matcher_of
from slurmtrain.logs.scan import Finder

WORTH_BYTES = 8 << 20


def find_finder(rules: RuleSet, size: int | None = None) -> Finder | None:
    """A finder for these rules, or None without hyperscan or for a log too small to be worth its start."""
    if size is not None and size < WORTH_BYTES:
        return None
    try:
        import hyperscan
    except ImportError:
        return None
    matcher = matcher_of(rules)
    if matcher.unfiltered or not matcher.words:
        return None
    words = [word.encode() for word in matcher.words]
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(
        expressions=words,
        ids=list(range(len(words))),
        elements=len(words),
        flags=[hyperscan.HS_FLAG_CASELESS] * len(words),
        literal=True,
    )
    return _finder(database, [len(word) for word in words])


def _finder(database: Any, lengths: list[int]) -> Finder:
    def find(data: bytes) -> Iterator[int]:
        found: list[int] = []

        def seen(ident: int, _from: int, to: int, _flags: int, _context: Any) -> None:
            found.append(to - lengths[ident])

        database.scan(data, match_event_handler=seen)
        found.sort()
        return iter(found)

    return find
