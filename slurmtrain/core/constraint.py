"""What ``--constraint`` asks of nodes: whether some nodes can still meet it.

Slurm's language (man sbatch): features joined by ``&`` and ``|``, parentheses, a number of nodes for a feature
(``gpu*2``), and in brackets features of which all nodes must have the same (``[rack1|rack2]``). Where Slurm's reading
is not sure (it evaluates from left to right), the one counts that fewer nodes fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

_TOKEN = re.compile(r"\s*(?:([^\s&|,()\[\]*]+)|([&|,()\[\]])|(\*)\s*([0-9]{1,6}))")
_MOST_WAYS = 64  # of choosing one feature of each bracket
_MOST_TOKENS = 400

_Words = list[str]  # features and operators


@dataclass(frozen=True, slots=True)
class Part:
    """What one component of a job asks for: so many of these nodes (name → features), with this constraint."""

    nodes: Mapping[str, frozenset[str]]
    wanted: int
    constraint: str = ""


def can_run(part: Part, left: Iterable[str]) -> bool:
    """Whether the nodes that are left are enough for it. False for a constraint that cannot be read."""
    nodes = {name: part.nodes[name] for name in left if name in part.nodes}
    if len(nodes) < part.wanted:
        return False
    if not part.constraint.strip():
        return True
    try:
        return any(_meets(way, nodes, part.wanted) for way in _ways(_read(part.constraint)))
    except (ValueError, RecursionError):
        return False


def _read(text: str) -> _Words:
    """Features, operators, and numbers as ``*4``. Raises ``ValueError``."""
    words: _Words = []
    at = 0
    text = text.strip().strip("\"'")
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or len(words) >= _MOST_TOKENS:
            raise ValueError(f"not a constraint: {text[:60]!r}")
        words.append(match[1] or match[2] or f"*{match[4]}")
        at = match.end()
    return ["&" if word == "," else word for word in words]


def _ways(words: _Words) -> Iterable[_Words]:
    """The constraint with one choice made in each bracket that has one: all nodes have to make the same."""
    parts: list[list[_Words]] = []
    at = 0
    while at < len(words):
        if words[at] != "[":
            parts.append([[words[at]]])
            at += 1
            continue
        end = words.index("]", at)
        inside = words[at + 1 : end]
        choices = _split(inside, "|")
        parts.append([["(", *choice, ")"] for choice in choices])
        at = end + 1
    ways = product(*parts)
    return ([word for piece in way for word in piece] for way, _ in zip(ways, range(_MOST_WAYS), strict=False))


def _split(words: _Words, operator: str) -> list[_Words]:
    """At an operator, outside of parentheses."""
    found: list[_Words] = [[]]
    depth = 0
    for word in words:
        depth += (word == "(") - (word == ")")
        if word == operator and depth == 0:
            found.append([])
        else:
            found[-1].append(word)
    return found


def _meets(words: _Words, nodes: Mapping[str, frozenset[str]], wanted: int) -> bool:
    """Whether so many nodes fit, and of each feature with a number at least as many as it says."""
    if not any(word.startswith("*") for word in words):
        return sum(_fits(words, features) for features in nodes.values()) >= wanted
    words = [word for word in words if word not in {"(", ")"}] if _only_counts(words) else words
    terms = _split(words, "&")
    if any("|" in term for term in terms):
        raise ValueError("numbers of nodes joined by |")
    counted = [(term[:-1], int(term[-1][1:])) for term in terms if term and term[-1].startswith("*")]
    plain = [term for term in terms if not (term and term[-1].startswith("*"))]
    fitting = [features for features in nodes.values() if all(_fits(term, features) for term in plain)]
    enough = (sum(_fits(term, features) for features in fitting) >= number for term, number in counted)
    return len(fitting) >= wanted and all(enough)


def _only_counts(words: _Words) -> bool:
    """``(a*2&b*4)``: the parentheses group nothing that would have to be kept together."""
    grouped = any(word == ")" and after.startswith("*") for word, after in pairwise(words))
    return "|" not in words and not grouped


def _fits(words: _Words, features: frozenset[str]) -> bool:
    """Whether a node fits, read from left to right and read with ``&`` before ``|``."""
    return _left_to_right(list(words), features) and _and_first(words, features)


def _left_to_right(words: _Words, features: frozenset[str]) -> bool:
    """Consumes ``words`` up to a closing parenthesis or the end."""
    value = _operand(words, features)
    while words and words[0] != ")":
        operator = words.pop(0)
        other = _operand(words, features)
        if operator not in {"&", "|"}:
            raise ValueError(f"not an operator: {operator}")
        value = value and other if operator == "&" else value or other
    return value


def _operand(words: _Words, features: frozenset[str]) -> bool:
    if not words:
        raise ValueError("a feature is missing")
    word = words.pop(0)
    if word == "(":
        value = _left_to_right(words, features)
        if not words or words.pop(0) != ")":
            raise ValueError("a parenthesis is not closed")
        return value
    if word in {"&", "|", ")", "[", "]"} or word.startswith("*"):
        raise ValueError(f"not a feature: {word}")
    return word in features


def _and_first(words: _Words, features: frozenset[str]) -> bool:
    return any(all(_one(term, features) for term in _split(choice, "&")) for choice in _split(words, "|"))


def _one(term: _Words, features: frozenset[str]) -> bool:
    if len(term) > 2 and term[0] == "(" and term[-1] == ")":
        return _and_first(term[1:-1], features)
    return len(term) == 1 and term[0] in features
