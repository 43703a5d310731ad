"""Run the rules of packs on their own examples; find rules that hide each other and patterns that are slow."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmtrain.core.rules import Rule
from slurmtrain.plugins.literals import strength
from slurmtrain.plugins.rulepacks import Pack

WEAK = 2.0
SLOW_S = 0.05
TEXTS = (
    "a" * 4000,
    "error: " * 600,
    "0 " * 2000,
    "(" * 3000,
    "x.y" * 1300,
    '/"' * 2000,
    "Error Exception failed: " * 160 + "!",
    '\n    File "x.py", line 3, in load_checkpoint\n        y = z' * 80,
    "\n" * 2000 + "    x: " * 300,
    "a" * 60 + "!",
    "a1_ " * 30 + "!",
    "1" * 60 + "x",
)
WAIT_S = 1.0

# Searches a text: whether it was found, and how many seconds that took. A search may be given up after WAIT_S.
Search = Callable[[re.Pattern[str], str], tuple[bool, float]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something to mend in a pack."""

    pack: str
    rule: str
    kind: str
    text: str


def find_problems(packs: Sequence[Pack], search: Search | None = None) -> list[Problem]:
    """Missing examples, shadowed names, weak filters and slow patterns. Examples themselves are run by the caller."""
    search = search or _plain_search
    problems: list[Problem] = []
    seen: dict[str, str] = {}
    for pack in packs:
        shown = {(example.rule, example.hits) for example in pack.examples}
        for rule in pack.rules:
            if rule.id in seen:
                problems.append(
                    Problem(pack.name, rule.id, "shadowed", f"pack {seen[rule.id]} has a rule of this name")
                )
            seen.setdefault(rule.id, pack.name)
            if rule.reads_log:
                problems += _examples_missing(pack, rule, shown)
                problems += _weak_filter(pack, rule)
                problems += _slow(pack, rule, search)
        problems += _hidden(pack, search)
    return problems


def _examples_missing(pack: Pack, rule: Rule, shown: set[tuple[str, bool]]) -> list[Problem]:
    words = {True: "hit", False: "miss"}
    return [
        Problem(pack.name, rule.id, "example", f"it has no example under {words[hits]!r}")
        for hits in (True, False)
        if (rule.id, hits) not in shown
    ]


def _weak_filter(pack: Pack, rule: Rule) -> list[Problem]:
    return [
        Problem(
            pack.name,
            rule.id,
            "filter",
            f"no rare literal is certain in {pattern[:80]!r}: too many lines would be tried",
        )
        for pattern, words in zip(rule.patterns or (rule.exceptions or "",), rule.literals, strict=False)
        if not words or (rule.patterns and min(strength(word) for word in words) < WEAK)
    ]


def _slow(pack: Pack, rule: Rule, search: Search) -> list[Problem]:
    """Patterns that take long on repetitive text of 4 kB, the most a pattern is ever given at once."""
    problems = []
    flags = re.IGNORECASE if rule.ignore_case else 0
    parts = [*rule.patterns, *(part for part in (rule.near, rule.then, rule.unless, rule.exceptions) if part)]
    for part in parts:
        compiled = re.compile(part, flags)
        for text in TEXTS:
            taken = search(compiled, text)[1]
            if SLOW_S < taken < WAIT_S:  # once more: the machine may have been busy
                taken = min(search(compiled, text)[1] for _ in range(3))
            if taken > SLOW_S:
                problems.append(Problem(pack.name, rule.id, "slow", f"{taken * 1000:.0f} ms for 4 kB: {part[:80]!r}"))
                break
    return problems


def _plain_search(pattern: re.Pattern[str], text: str) -> tuple[bool, float]:
    started = time.perf_counter()
    return pattern.search(text) is not None, time.perf_counter() - started


def _hidden(pack: Pack, search: Search) -> list[Problem]:
    """In a user's pack the first match wins: a later rule whose own hits an earlier rule takes can never decide."""
    if not pack.own:
        return []
    problems = []
    for at, rule in enumerate(pack.rules):
        hits = [example.text for example in pack.examples if example.rule == rule.id and example.hits]
        for earlier in pack.rules[:at]:
            if (
                hits
                and earlier.patterns
                and all(_matches(earlier, text.splitlines()[-1], search) for text in hits if text.strip())
            ):
                problems.append(
                    Problem(pack.name, rule.id, "hidden", f"rule {earlier.id!r} before it takes all its hits")
                )
                break
    return problems


def _matches(rule: Rule, text: str, search: Search) -> bool:
    if rule.exit_code or rule.signal or rule.state or rule.reason or rule.node or rule.near or rule.then:
        return False
    flags = re.IGNORECASE if rule.ignore_case else 0
    return any(search(re.compile(pattern, flags), text)[0] for pattern in rule.patterns)
