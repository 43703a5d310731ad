"""A rule: what text or fact means what. Rules are data, read from packs and frozen into the run directory as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

KINDS = ("cause", "victim", "launcher", "start", "end", "stop", "notice", "ignore", "mark")
OUTCOMES = ("FailJob", "Ignore", "Count")
OPERATORS = ("<", "<=", ">", ">=", "nan", "not-rising", "not-falling")
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Metric:
    """Stop on a value in the log.

    `pattern` has one group with a number; the rule matches when the last `times` values (of one rank, where ranks are
    marked) satisfy `op` `value`. ``not-rising`` and ``not-falling``: none of them is better than the best one before
    them by more than `value`.
    """

    pattern: str
    op: str
    value: float = 0.0
    times: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. All conditions that are given must hold.

    One of `patterns` is searched in one line without its prefix (rank label, time stamp, colour); with `exceptions` the
    line must raise one of these Python exception names and the patterns are searched in its message. `near` must be
    found in the lines just before (the same rank's, if the rank is known), `then` in those just after; `unless` must
    not be found in the line itself. A `fallback` counts only on lines that no other rule knows.
    `literals` holds, for each pattern, lower-case strings of which every matching line has at least one: the quick
    filter.

    `weight` (0 to 100) is how much nearer to the root this evidence is than other evidence; `victim_of` names causes or
    families that, found anywhere in the same launch, explain this one. `exit_code`, `signal`, `state`, `reason` and
    `node` are conditions on Slurm's facts. `outcome` is what a user's or a site's rule decides whatever the cause.
    """

    id: str
    cause: str | None = None
    kind: str = "cause"
    patterns: tuple[str, ...] = ()
    ignore_case: bool = False
    exceptions: str | None = None
    near: str | None = None
    then: str | None = None
    unless: str | None = None
    literals: tuple[tuple[str, ...], ...] = ()
    weight: int = 0
    victim_of: tuple[str, ...] = ()
    min_count: int = 1
    fallback: bool = False
    exit_code: tuple[int, ...] = ()
    signal: tuple[int, ...] = ()
    state: tuple[str, ...] = ()
    reason: str | None = None
    node: str | None = None
    metric: Metric | None = None
    outcome: str | None = None
    action: str | None = None
    retryable: bool | None = None
    first_rung: str | None = None
    advice: str | None = None
    confidence: float | None = None
    own: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Only what differs from the defaults, JSON-ready."""
        data = asdict(self)
        return {item.name: data[item.name] for item in fields(self) if data[item.name] != item.default}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rule:
        """The inverse of `to_dict`; unknown keys are ignored, so that an older agent takes a newer pack."""
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in data.items():
            if key in known:
                values[key] = tuple(value) if isinstance(value, list) else value
        values["literals"] = tuple(tuple(words) for words in values.get("literals", ()))
        if values.get("metric") is not None:
            values["metric"] = Metric(**values["metric"])
        return cls(**values)

    @property
    def reads_log(self) -> bool:
        """Whether the rule needs the text of a line."""
        return bool(self.patterns) or self.exceptions is not None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order of precedence, users' and sites' first.

    The order decides between `own` rules; weights decide between the rest.
    """

    rules: tuple[Rule, ...] = ()
    sources: tuple[str, ...] = field(default_factory=tuple)

    def by_id(self) -> dict[str, Rule]:
        """The rules by their id; the first of a name wins."""
        found: dict[str, Rule] = {}
        for rule in self.rules:
            found.setdefault(rule.id, rule)
        return found

    def to_json(self) -> str:
        """The frozen form that the agent reads."""
        return json.dumps(
            {"format": FORMAT, "sources": self.sources, "rules": [rule.to_dict() for rule in self.rules]},
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> RuleSet:
        """Read what `to_json` wrote; ValueError when it is something else."""
        data = json.loads(text)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"not a frozen rule set of format {FORMAT}")
        return cls(tuple(Rule.from_dict(item) for item in data["rules"]), tuple(data.get("sources", ())))

    @classmethod
    def of(cls, rules: Iterable[Rule], sources: Iterable[str] = ()) -> RuleSet:
        """A rule set of these rules."""
        return cls(tuple(rules), tuple(sources))
