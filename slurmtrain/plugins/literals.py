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
MOST = 90
# Words that healthy logs are full of: a filter by one of them lets every line pass.
_COMMON_WORDS = """
    loss grad norm size step steps rank iter epoch num_ host port link make run inf code exit time batch data info
    train training model local file name node cuda
    rank world learning rate memory value type config loading total param parameter torch python version device gpu
    grad_norm tensor process processes list file: load state batch size model parallel checkpoint
    token tokens stat less
"""

# Words that logs of failures are full of: a rarer one is better.
_LIKELY_WORDS = """
    error errors failed failure fail timeout exception rror xception detected unknown found available connection
    instance nccl collective terminate exit exitcode fatal corrupt truncated lost down requires expected invalid
    warning not found
"""

_COMMON = frozenset(_COMMON_WORDS.split())
_LIKELY = frozenset(_LIKELY_WORDS.split())


def find_literals(pattern: str) -> tuple[str, ...]:
    """Lower-case strings of which every match holds at least one; empty when none is certain."""
    best = _best(_parse.parse(pattern))
    return tuple(sorted(best)) if best else ()


def _best(tree: Any) -> frozenset[str] | None:
    options = list(_options(tree))
    return max(options, key=_score, default=None)


def strength(word: str) -> float:
    """How rare a literal is in a healthy log, roughly: its length, unless it is an everyday word."""
    plain = word if "  " in word else word.strip(" :'\"()[]=,.")
    if plain in _COMMON:
        return 1.0
    if plain in _LIKELY:
        return 2.8
    if not any(letter.isalpha() for letter in plain):
        return 2.1 if len(plain) > 2 else 0.5
    return min(len(plain), 14) * (1.0 if len(plain) > 3 else 0.7)


def _score(words: frozenset[str]) -> float:
    return min(strength(word) for word in words) - 0.1 * len(words)


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
