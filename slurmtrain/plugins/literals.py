"""Which strings must be in every text that a pattern matches: the quick filter of a rule.

Works on the parse tree of `re`; what it cannot read gives no literal, and the rule is tried on every line.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as _sre  # type: ignore[attr-defined]
    from re import _parser as _parse  # type: ignore[attr-defined]
else:  # pragma: no cover - depends on the interpreter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import sre_constants as _sre
        import sre_parse as _parse

SHORTEST = 3
MOST = 24
_COMMON = frozenset(
    (
        "error",
        "error:",
        "failed",
        "exception",
        "errors",
        "status",
        "warning",
        "not found",
        " not ",
        "invalid",
        "expected",
        "cuda",
        "rank",
    )
)


def find_literals(pattern: str) -> tuple[str, ...]:
    """Lower-case strings of which every match holds at least one; empty when none is certain."""
    best = _best(_parse.parse(pattern))
    return tuple(sorted(best)) if best else ()


def _best(tree: Any) -> frozenset[str] | None:
    options = list(_options(tree))
    return max(options, key=_score, default=None)


def _score(words: frozenset[str]) -> float:
    shortest = min(len(word) for word in words)
    common = sum(1 for word in words if word.strip() in _COMMON or not any(letter.isalpha() for letter in word))
    return min(shortest, 14) - 5 * common - 0.5 * len(words)


def _options(tree: Any) -> list[frozenset[str]]:
    """Every set of strings one of which must be in a match of this sequence."""
    found: list[frozenset[str]] = []
    run: list[str] = []

    def flush() -> None:
        text = "".join(run)
        run.clear()
        if len(text) >= SHORTEST:
            found.append(frozenset((text,)))

    for operation, argument in tree:
        letter = _letter(operation, argument)
        if letter is not None:
            run.append(letter)
        elif operation is _sre.AT or operation in (_sre.ASSERT, _sre.ASSERT_NOT):
            continue
        elif operation is _sre.SUBPATTERN and _plain(argument[-1]) is not None:
            run.extend(_plain(argument[-1]) or "")
        else:
            flush()
            found.extend(_inner(operation, argument))
    flush()
    return [words for words in found if len(words) <= MOST]


def _inner(operation: Any, argument: Any) -> list[frozenset[str]]:
    if operation is _sre.SUBPATTERN:
        return _options(argument[-1])
    if operation in (_sre.MAX_REPEAT, _sre.MIN_REPEAT) and argument[0] >= 1:
        return _options(argument[2])
    if operation is _sre.BRANCH:
        parts = [_best(part) for part in argument[1]]
        if all(part is not None for part in parts):
            return [frozenset(word for part in parts if part for word in part)]
    return []


def _letter(operation: Any, argument: Any) -> str | None:
    if operation is _sre.LITERAL and argument < 128:
        return chr(argument).lower()
    if operation is _sre.IN:
        letters = {chr(value).lower() for kind, value in argument if kind is _sre.LITERAL and value < 128}
        if len(letters) == 1 and all(kind is _sre.LITERAL for kind, _ in argument):
            return letters.pop()
    return None


def _plain(tree: Any) -> str | None:
    """The text of a sequence that is only letters, or None."""
    letters = [_letter(operation, argument) for operation, argument in tree]
    return None if any(letter is None for letter in letters) else "".join(letter or "" for letter in letters)
