"""What one pass over one log saw: bounded, plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurmtrain.core.rules import Rule, RuleSet


@dataclass(slots=True)
class Finding:
    """One rule that matched, with where and how often; repeats within one episode are counted, not kept.

    `kind` is the rule's: ``cause`` (may be the first cause), ``victim`` (a consequence of something else, or alone),
    ``launcher`` (a summary without a cause), ``start`` and ``end`` of a launch, ``stop`` (Slurm or a person ended it),
    ``notice``. `progress` and `rank_progress` are the number of lines that showed progress before it, overall and of
    the same rank, `after_own` the lines of progress that the same rank printed after it. `time` is in
    seconds on a scale that is only good for comparing lines of one run.
    """

    rule: str
    cause: str | None
    kind: str
    weight: int
    line: int
    text: str
    rank: int | None = None
    node: str | None = None
    time: float | None = None
    segment: int = 0
    progress: int = 0
    rank_progress: int = 0
    count: int = 1
    last_line: int = 0
    shown_line: int = 0
    shown_text: str = ""
    last_progress: int = 0
    handled: bool = False
    after_own: int = 0
    file: str = ""
    stream: tuple[int | None, int | None, int | None] = (None, None, None)
    values: Mapping[str, str] = field(default_factory=dict)
    source: Rule | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class Findings:
    """All that is kept of one log.

    `lines` counts the lines read, `progress` the lines that showed progress after a finding (enough of
    them to tell a survived error from a fatal one, not all). `segments` are the lines where a launch began by our
    own mark. `tail` holds the last lines, numbered. `end_time` is the time of the last output line and `stop_time` that
    of Slurm's cancel line. `nan_run` counts the loss values at the end that are not finite. `tasks_differ`: srun's task
    numbers are no ranks, because each task is a launcher or counts inside its component of a heterogeneous job.
    """

    name: str
    lines: int = 0
    findings: list[Finding] = field(default_factory=list)
    progress: int = 0
    segments: list[int] = field(default_factory=list)
    tail: list[tuple[int, str]] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)
    max_rank: int = -1
    max_local_rank: int = -1
    max_label: int = -1
    last_line: int = 0
    last_text: str = ""
    tasks_differ: bool = False
    file_rank: int | None = None
    start_time: float | None = None
    end_time: float | None = None
    stop_time: float | None = None
    nan_run: int = 0
    truncated: bool = False
    finished: int = 0
    rules: RuleSet | None = field(default=None, repr=False, compare=False)

    def notes(self) -> dict[str, Any]:
        """Counters for tests and the benchmark."""
        return {"lines": self.lines, "findings": len(self.findings), "progress": self.progress}
