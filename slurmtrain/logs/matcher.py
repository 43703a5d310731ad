"""Rules made ready for one pass: a quick filter over bytes, then the patterns of the few rules whose literal is there.

Patterns are compiled when their literal is first seen, so a cold start costs nothing for rules that a log never needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from slurmtrain.core.rules import Rule, RuleSet

FILTER_LENGTH = 12

_BEFORE_EXCEPTION = r"(?:^|(?<=[\s\]>:)│|]))(?P<exception>(?:[A-Za-z_]\w*\.){0,12}"
_AFTER_EXCEPTION = r")(?:\([^()]{0,80}\))?(?::(?!:) ?(?P<message>.*)|\s*$)"


def trie_of(words: Iterable[str]) -> str:
    """A pattern that finds any of the words, sharing their beginnings."""
    root: dict[str, Any] = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _branch(root)


def _branch(node: dict[str, Any]) -> str:
    if "" in node:
        return ""
    parts = [re.escape(letter) + _branch(child) for letter, child in sorted(node.items())]
    return parts[0] if len(parts) == 1 else "(?:" + "|".join(parts) + ")"


class CompiledRule:
    """One pattern of one rule, compiled at first use."""

    __slots__ = ("_exception", "_near", "_pattern", "_then", "_unless", "literals", "order", "pattern", "rule")

    def __init__(self, rule: Rule, order: int, pattern: str | None, literals: tuple[str, ...]) -> None:
        self.rule = rule
        self.order = order
        self.pattern = pattern
        self.literals = literals
        self._pattern: re.Pattern[str] | None = None
        self._exception: re.Pattern[str] | None = None
        self._near: re.Pattern[str] | None = None
        self._then: re.Pattern[str] | None = None
        self._unless: re.Pattern[str] | None = None

    def search(self, body: str) -> re.Match[str] | None:
        """The match in one line, or None."""
        if self.rule.exceptions is None:
            return self._compiled().search(body)
        if self._exception is None:
            self._exception = re.compile(_BEFORE_EXCEPTION + "(?:" + self.rule.exceptions + ")" + _AFTER_EXCEPTION)
        found = self._exception.search(body)
        if found is None or not _is_raised(body, found):
            return None
        if self.pattern is None:
            return found
        return self._compiled().search(found.group("message") or "")

    def _compiled(self) -> re.Pattern[str]:
        if self._pattern is None:
            flags = re.IGNORECASE if self.rule.ignore_case else 0
            self._pattern = re.compile(self.pattern or "", flags)
        return self._pattern

    @property
    def needs_context(self) -> bool:
        """Whether the lines before matter."""
        rule = self.rule
        return any(part is not None for part in (rule.near, rule.then, rule.exceptions))

    def near(self, text: str) -> dict[str, str | None] | None:
        """The named groups of what must be near; None where it is not there."""
        if self.rule.near is None:
            return {}
        if self._near is None:
            self._near = re.compile(self.rule.near)
        found = self._near.search(text)
        return None if found is None else found.groupdict()

    def followed(self, text: str) -> dict[str, str | None] | None:
        """The named groups of what must follow; None where it does not."""
        if self.rule.then is None:
            return {}
        if self._then is None:
            self._then = re.compile(self.rule.then)
        found = self._then.search(text)
        return None if found is None else found.groupdict()

    def excluded(self, text: str) -> bool:
        """Whether what must not be there is there."""
        if self.rule.unless is None:
            return False
        if self._unless is None:
            self._unless = re.compile(self.rule.unless)
        return self._unless.search(text) is not None


def _is_raised(body: str, found: re.Match[str]) -> bool:
    """Whether the name is printed as an exception and not just mentioned."""
    lead = body[max(0, found.start("exception") - 40) : found.start("exception")].rstrip()
    if lead.endswith("::"):
        return False
    if lead.endswith(("except", "raise", "class", "import", "catch", "raises")):
        return False
    return found.group("message") is not None or not lead or lead[-1] in "]:)>│|"


class Matcher:
    """All rules that read the log, ready to scan."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.entries = list(_entries(rules))
        self.unfiltered = [entry for entry in self.entries if not entry.literals]
        table = [(literal, entry) for entry in self.entries for literal in entry.literals]
        self.words = prefix_free({literal[:FILTER_LENGTH] for literal, _ in table})
        self._known: dict[str, list[tuple[str, CompiledRule]]] = {word: [] for word in self.words}
        for literal, entry in table:
            word = next(literal[:size] for size in range(1, len(literal) + 1) if literal[:size] in self._known)
            self._known[word].append((literal, entry))
        trie = trie_of(self.words)
        usable = bool(self.words) and not self.unfiltered
        self.filter = re.compile(trie.encode()) if usable else re.compile(rb"[^\r\n]")
        self._overlapping = re.compile(f"(?=({trie}))") if self.words else None

    def candidates(self, lowered: str) -> list[CompiledRule]:
        """The patterns one of whose literals is in the line (given in lower case), in order."""
        found = {entry.order: entry for entry in self.unfiltered}
        if self._overlapping is not None:
            for word in {hit.group(1) for hit in self._overlapping.finditer(lowered)}:
                for literal, entry in self._known[word]:
                    if len(literal) == len(word) or literal in lowered:
                        found[entry.order] = entry
        return [found[order] for order in sorted(found)]


def prefix_free(words: Iterable[str]) -> list[str]:
    """Without the words that begin with another one: that one finds them."""
    kept: list[str] = []
    for word in sorted(words):
        if not kept or not word.startswith(kept[-1]):
            kept.append(word)
    return kept


def _entries(rules: RuleSet) -> Iterator[CompiledRule]:
    order = 0
    for rule in rules.rules:
        if not rule.reads_log:
            continue
        patterns: tuple[str | None, ...] = rule.patterns or (None,)
        for at, pattern in enumerate(patterns):
            yield CompiledRule(rule, order, pattern, rule.literals[at] if at < len(rule.literals) else ())
            order += 1


_LAST: list[Matcher] = []


def matcher_of(rules: RuleSet) -> Matcher:
    """The matcher of a rule set, kept for the next log."""
    if not _LAST or _LAST[0].rules is not rules:
        _LAST[:] = [Matcher(rules)]
    return _LAST[0]
