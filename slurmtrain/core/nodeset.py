"""Slurm's node list expressions: ``n[1-3,7]``, ``a-[001-100]-x``, ``r[1-2]n[01-16],login1``.

Pure. Every function raises ``ValueError`` (one sentence) for text that is no node list or names more nodes than its
bound: such text may come from a user, a file or a broken command. A leading zero fixes the width (``[08-12]``), as in
Slurm's ``src/common/hostlist.c``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product

MAX_NODES = 65_536  # MAX_HOSTLIST in Slurm is 64 K too
_MAX_TEXT = 4_000_000
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?", re.ASCII)
_LAST_NUMBER = re.compile(r"(.*?)([0-9]{1,15})", re.ASCII)
_NO_NODES = frozenset({"", "(null)", "none", "none assigned", "n/a"})


def expand_nodes(expression: str, *, limit: int = MAX_NODES) -> list[str]:
    """All names in the order of the expression, each once; ``[]`` for Slurm's words for "no nodes"."""
    text = expression.strip()
    if text.lower() in _NO_NODES:
        return []
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a node list of {len(text)} characters is longer than {_MAX_TEXT}")
    names: dict[str, None] = {}
    for part in _split(text):
        for name in _expand_part(part, limit - len(names)):
            names[name] = None
    return list(names)


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    start = depth = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        if depth not in (0, 1):
            raise ValueError(f"{_shown(text)} is no node list: its brackets do not match")
        if character == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if depth:
        raise ValueError(f"{_shown(text)} is no node list: its brackets do not match")
    yield text[start:]


def _expand_part(part: str, room: int) -> Iterator[str]:
    """``a[1-2]b[3-4]`` → a1b3, a1b4, a2b3, a2b4; refuses before it makes more names than ``room``."""
    pieces: list[list[str]] = []
    total = 1
    for literal, ranges in _pieces(part):
        choices = [literal] if ranges is None else _numbers(ranges, part, room)
        total *= len(choices)
        if total > room:
            raise ValueError(f"{_shown(part)} names more than {MAX_NODES} nodes")
        pieces.append(choices)
    for combination in product(*pieces):
        name = "".join(combination)
        if not _NAME.fullmatch(name):
            raise ValueError(f"{_shown(part)} is no node name")
        yield name


def _pieces(part: str) -> Iterator[tuple[str, str | None]]:
    """(literal, None) or ("", ranges), in order; brackets are known to match."""
    rest = part.strip()
    while rest:
        literal, bracket, tail = rest.partition("[")
        if literal or not bracket:
            yield literal, None
        if bracket:
            ranges, _, tail = tail.partition("]")
            yield "", ranges
        rest = tail
    if not part.strip():
        yield "", None


def _numbers(ranges: str, part: str, room: int) -> list[str]:
    numbers: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None:
            raise ValueError(f"{_shown(part)} is no node list: {_shown(item)} is no number or range")
        low, high = match[1], match[2] or match[1]
        count = int(high) - int(low) + 1
        if count < 1:
            raise ValueError(f"{_shown(part)} is no node list: the range {item} runs backwards")
        if len(numbers) + count > room:
            raise ValueError(f"{_shown(part)} names more than {MAX_NODES} nodes")
        width = len(low) if low.startswith("0") else 1
        numbers += [f"{number:0{width}d}" for number in range(int(low), int(high) + 1)]
    return numbers


def fold_nodes(names: Iterable[str]) -> str:
    """The shortest expression with ranges in the last number of each name, ordered by name; ``""`` for none.

    Only what every Slurm reads: one bracket per name, at the place of its last number.
    """
    groups: dict[tuple[str, str, int], set[int]] = {}
    plain: set[str] = set()
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{_shown(name)} is no node name")
        match = _LAST_NUMBER.fullmatch(name)
        if match is None:
            plain.add(name)
            continue
        prefix, digits = match[1], match[2]
        width = len(digits) if digits.startswith("0") else 0
        groups.setdefault((prefix, digits, 0) if not prefix else (prefix, "", width), set()).add(int(digits))
    _join_padded(groups)
    parts = [_fold_group(key, numbers) for key, numbers in groups.items()]
    return ",".join(sorted([*plain, *parts], key=_natural))


def _join_padded(groups: dict[tuple[str, str, int], set[int]]) -> None:
    """``n08,n09,n10``: a number without a leading zero joins the padded group of its width."""
    for prefix, digits, width in list(groups):
        unpadded = (prefix, "", 0)
        if digits or not width or unpadded not in groups:
            continue
        fitting = {number for number in groups[unpadded] if len(str(number)) == width}
        groups[(prefix, "", width)] |= fitting
        groups[unpadded] -= fitting
        if not groups[unpadded]:
            del groups[unpadded]


def _fold_group(key: tuple[str, str, int], numbers: set[int]) -> str:
    prefix, digits, width = key
    if digits:
        return digits  # a name of digits only: a bracket without a prefix is no host name
    ranges = [_range_text(low, high, width) for low, high in _runs(sorted(numbers))]
    if len(numbers) == 1:
        return f"{prefix}{ranges[0]}"
    return f"{prefix}[{','.join(ranges)}]"


def _range_text(low: int, high: int, width: int) -> str:
    return f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number == high + 1:
            high = number
            continue
        yield low, high
        low = high = number
    yield low, high


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(piece), "") if piece.isdigit() else (1, 0, piece) for piece in re.split(r"([0-9]+)", name) if piece]


def subtract_nodes(expression: str, removed: str) -> str:
    """``n[1-4]`` without ``n[2,9]`` → ``n[1,3-4]``."""
    gone = set(expand_nodes(removed))
    return fold_nodes(name for name in expand_nodes(expression) if name not in gone)


def join_nodes(*expressions: str) -> str:
    """The union: ``n1`` and ``n[2-3]`` → ``n[1-3]``."""
    return fold_nodes(name for expression in expressions for name in expand_nodes(expression))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
