"""One line against all rules: which match, in which order they may claim it."""

from __future__ import annotations

import re

from slurmtrain.core.rules import Rule
from slurmtrain.logs.lines import unescape_json
from slurmtrain.logs.matcher import CompiledRule, Matcher

CACHE = 2_048
PROOF = 90
MILD = 18

# The rule, its match, and the text it was found in: the line's, or one line of the message of a JSON line.
Match = tuple[CompiledRule, re.Match[str], str]

_SOURCE = re.compile(
    r"\s*(?:❱ ?)?\d* ?│|\s*File \"[^\"]{1,400}\", line \d|\+{1,3} |"
    r"\s{4,}(?:raise|return|assert|except|if|elif|else|for|while|with|print|logger|logging"
    r"|log|self|def|from|import|try|warnings|yield|await|async"
    r"|msg|message|f?\"|f?'|#|[a-z_][\w.\[\]]* ?(?:[-+*/|]?= |\())"
)
_MILD = re.compile(r"(?<!NCCL )(?<!NCCL_DEBUG=)\bWARN(?:ING)?\b|\[NeMo W |UserWarning: ")


class LineMatcher:
    """Matches lines, and remembers the answers for lines that repeat."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._cache: dict[str, list[Match]] = {}

    def find(self, body: str) -> list[Match]:
        """The matches of a line without its prefixes, the one with the best claim first."""
        known = self._cache.get(body)
        if known is not None:
            return known
        if len(self._cache) >= CACHE:
            self._cache.clear()
        found = self._search(body)
        self._cache[body] = found
        return found

    def _search(self, body: str) -> list[Match]:
        parts = [body]
        if body.startswith("{") and '"' in body:
            parts = unescape_json(body) or parts
        matches: list[Match] = []
        for part in parts:
            for entry in self._matcher.candidates(part.lower()):
                rule = entry.rule
                if rule.kind in ("cause", "victim", "notice") and _SOURCE.match(part):
                    continue
                found = entry.search(part)
                if found is not None and not entry.excluded(part):
                    matches.append((entry, found, part))
        if any(entry.rule.kind == "ignore" for entry, _, _ in matches):
            return [pair for pair in matches if pair[0].rule.own or pair[0].rule.kind not in ("cause", "victim")]
        return sorted(matches, key=_precedence)


def is_mild(rule: Rule, body: str) -> bool:
    """Whether the line calls itself a warning: then it is a cause only where nothing else is found."""
    if rule.kind != "cause" or rule.weight >= PROOF or rule.cause in ("time_limit", "preempted"):
        return False
    return _MILD.search(body, 0, 200) is not None


def competes(rule: Rule) -> bool:
    """Whether only one such rule may claim a line; a user's own rules and the other kinds always count."""
    return rule.kind in ("cause", "victim") and not rule.own and rule.metric is None


def _precedence(pair: Match) -> tuple[bool, int, int]:
    rule = pair[0].rule
    return (rule.fallback, -rule.weight, pair[0].order)
