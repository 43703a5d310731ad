"""The answer: what happened first, where, how sure, and what shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class EvidenceLine:
    """One line that shows the cause: 1-based number in its file (0: not known), text bounded, no control characters."""

    line: int
    text: str
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Suspect:
    """A node that may be at fault: how sure (0 to 1) and why."""

    node: str
    confidence: float
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One cause of the taxonomy for one launch.

    `retryable` and `action` are the cause's defaults unless the evidence changes them. `outcome` is the answer of a
    user's or site's rule (``FailJob``, ``Ignore``, ``Count``), None without one. `rule` is the rule that matched, None
    when Slurm's facts alone decided. `line` is 1-based in `file`. `advice` is the cause's, or that of the rule.
    """

    cause: str
    family: str
    retryable: bool
    action: str
    rank: int | None = None
    node: str | None = None
    file: str | None = None
    line: int | None = None
    evidence: tuple[EvidenceLine, ...] = ()
    confidence: float = 0.0
    sentence: str = ""
    suspects: tuple[Suspect, ...] = ()
    rule: str | None = None
    outcome: str | None = None
    first_rung: str = "none"
    infrastructure: bool = False
    notes: tuple[str, ...] = ()
    advice: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready copy; `from_dict` is its inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Diagnosis:
        """Read what `to_dict` wrote; unknown keys are ignored."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        values["evidence"] = tuple(EvidenceLine(**item) for item in values.get("evidence", ()))
        values["suspects"] = tuple(Suspect(**item) for item in values.get("suspects", ()))
        values["notes"] = tuple(values.get("notes", ()))
        return cls(**values)
