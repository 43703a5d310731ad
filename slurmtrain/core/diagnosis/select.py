"""Which finding is the first cause: of the last launch, not survived, no consequence, the earliest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding, Findings

PROOF = 90
ROOT = 50
STRONG_SYMPTOM = 40
SYMPTOM = 20

ENDED_THEN_RAN = 10
STOPPED_THEN_RAN = 200
MANY_RANKS = 8
OTHERS_WENT_ON = 1000
WRAPPED = 50
WRAP_LINES = 60

_RAISED = re.compile(r"(?:^|[\s.])\w*(?:Error|Exception)\b")


@dataclass(slots=True)
class Evidence:
    """The findings of the last launch, by role. `causes` holds only what was not survived and is no consequence."""

    causes: list[Finding] = field(default_factory=list)
    survived: list[Finding] = field(default_factory=list)
    stops: list[Finding] = field(default_factory=list)
    launcher: list[Finding] = field(default_factory=list)
    ends: list[Finding] = field(default_factory=list)
    notices: list[Finding] = field(default_factory=list)
    own: list[Finding] = field(default_factory=list)
    logs: list[Findings] = field(default_factory=list)
    multi_node: bool = False
    finished_last: bool = False

    def strongest(self) -> Finding | None:
        """The first cause among what is left, or None."""
        return choose(self.causes)


def gather(facts: Facts, logs: Sequence[Findings]) -> Evidence:
    """Sort the findings of all logs of one launch into roles."""
    evidence = Evidence(logs=list(logs), multi_node=_is_multi_node(facts, logs))
    failed: list[Finding] = []
    for log in logs:
        current = _after_other_job_end(facts, _last_launch(log))
        evidence.stops += [item for item in current if item.kind == "stop"]
        evidence.launcher += [item for item in current if item.kind == "launcher"]
        evidence.ends += [item for item in current if item.kind == "end"]
        evidence.notices += [item for item in current if item.kind == "notice"]
        for item in _enough(item for item in current if item.kind in ("cause", "victim")):
            if item.source is not None and item.source.own:
                evidence.own.append(item)
            elif survived(item, log):
                evidence.survived.append(item)
            else:
                failed.append(item)
        ends = [item.last_progress for item in current if item.kind in ("end", "launcher", "cause", "victim")]
        evidence.finished_last |= log.finished > 0 and all(log.finished > last for last in ends)
    evidence.causes = _without_victims(_without_wrappers(_adjust(failed, evidence)))
    return evidence


def _is_multi_node(facts: Facts, logs: Sequence[Findings]) -> bool:
    if facts.nnodes is not None:
        return facts.nnodes > 1
    hosts = set(facts.nodes).union(*(log.hosts for log in logs)) if logs else set(facts.nodes)
    return len(hosts) > 1 or max((max(log.max_rank, log.max_label) for log in logs), default=-1) >= MANY_RANKS


def _last_launch(log: Findings) -> list[Finding]:
    """The findings that belong to the last launch of an appended log."""
    segment = len(log.segments)
    current = [item for item in log.findings if item.segment == segment]
    boundary = 0
    for item in current:
        after = log.progress - item.last_progress
        if (item.kind in ("end", "launcher") and after >= ENDED_THEN_RAN) or (
            item.kind == "stop" and after >= STOPPED_THEN_RAN
        ):
            boundary = max(boundary, item.last_line)
    for item in current:
        if item.kind == "start" and _begins_anew(item, current, log):
            boundary = max(boundary, item.line - 1)
    kept = [item for item in current if item.last_line > boundary]
    return kept if kept or log.progress else current


def _after_other_job_end(facts: Facts, current: list[Finding]) -> list[Finding]:
    """Without what an earlier execution left, where Slurm's state says that this one was not cancelled.

    Slurm never calls a job FAILED that it preempted, requeued or timed out: such a line about the whole job, with a
    root cause after it, is of the execution before.
    """
    if facts.state != "FAILED" or not 0 < (facts.exit_code or 0) < 128 or facts.stop_sent:
        return current
    stops = [item.last_line for item in current if item.kind == "stop" and item.cause and "*** JOB " in item.text]
    roots = [item.line for item in current if item.kind == "cause" and item.weight >= ROOT]
    boundary = max((stop for stop in stops if any(line > stop for line in roots)), default=-1)
    return [item for item in current if item.line > boundary]


def _begins_anew(start: Finding, current: Sequence[Finding], log: Findings) -> bool:
    """Whether a start follows an end and something happened after it."""
    ended = any(item.kind in ("end", "launcher", "stop") and item.line < start.line for item in current)
    goes_on = any(item.kind in ("cause", "victim", "stop") and item.line > start.line for item in current)
    return ended and (goes_on or log.progress - start.last_progress >= ENDED_THEN_RAN)


def _enough(items: Iterable[Finding]) -> list[Finding]:
    kept = []
    counts: dict[str, int] = {}
    listed = list(items)
    for item in listed:
        counts[item.rule] = counts.get(item.rule, 0) + item.count
    for item in listed:
        needed = item.source.min_count if item.source is not None else 1
        if counts[item.rule] >= needed:
            kept.append(item)
    return kept


def survived(item: Finding, log: Findings) -> bool:
    """Whether the training went on after it."""
    total = log.progress - item.last_progress
    raised = _RAISED.search(item.text[:200]) is not None
    if log.finished > item.last_progress:
        return True
    if item.stream != (None, None, None):
        return item.after_own >= (6 if raised else 3) or total >= OTHERS_WENT_ON
    return total >= (6 if raised else 3)


def _adjust(items: list[Finding], evidence: Evidence) -> list[Finding]:
    """Causes that the neighbourhood changes."""
    binders = {item.stream for item in items if item.rule == "port-in-use" and item.stream != (None, None, None)}
    adjusted = []
    for item in items:
        if item.rule == "port-in-use" and len(binders) > 1:
            adjusted.append(replace(item, cause="comm_config"))
        elif item.rule == "nccl-loopback" and not evidence.multi_node:
            adjusted.append(replace(item, cause="nccl_system_error", kind="victim", weight=STRONG_SYMPTOM))
        else:
            adjusted.append(item)
    return adjusted


def _without_wrappers(items: list[Finding]) -> list[Finding]:
    """Drop an unspecific exception where the same stream says more in the next lines: a chain, a longer message."""
    specific = [item for item in items if item.weight >= WRAPPED and not _is_fallback(item)]
    return [
        item
        for item in items
        if not _is_fallback(item)
        or not any(
            other.file == item.file and other.stream == item.stream and 0 < other.line - item.line <= WRAP_LINES
            for other in specific
        )
    ]


def _is_fallback(item: Finding) -> bool:
    return item.source is not None and item.source.fallback


def _without_victims(items: list[Finding]) -> list[Finding]:
    """Drop what another finding explains; a finding that anything explains explains nothing itself."""
    first: dict[str, Finding] = {}  # the first of each cause: there may be thousands of findings, but few causes
    for item in items:
        if item.cause and not _explained_by_all(item):
            known = first.get(item.cause)
            if known is None or _comes_before(item, known):
                first[item.cause] = item
    return [item for item in items if not any(_hides(root, item) for root in first.values())]


def _hides(root: Finding, item: Finding) -> bool:
    """Whether the root explains the item; of two that explain each other the one that came first stays."""
    if root.cause == item.cause:
        return False
    if _explained_by_all(item):
        return True
    return _explains(root, item) and not (_explains(item, root) and _comes_before(item, root))


def _explains(root: Finding, item: Finding) -> bool:
    names = item.source.victim_of if item.source is not None else ()
    return root.cause in names or CAUSES[root.cause or "unknown"].family in names


def _comes_before(item: Finding, other: Finding) -> bool:
    if item.file == other.file:
        return item.line < other.line
    return item.time is not None and other.time is not None and item.time < other.time


def _explained_by_all(item: Finding) -> bool:
    return item.source is not None and "*" in item.source.victim_of


def choose(items: Sequence[Finding]) -> Finding | None:
    """Proof first; else the earliest that can be a root; else the strongest symptom."""
    for low, high in ((PROOF, 101), (ROOT, PROOF), (STRONG_SYMPTOM, ROOT), (SYMPTOM, STRONG_SYMPTOM), (0, SYMPTOM)):
        level = [item for item in items if low <= item.weight < high]
        if level:
            return _earliest(level)
    return None


def _earliest(items: Sequence[Finding]) -> Finding:
    """By time where all lines of different files carry one, else by file and line."""
    files = {item.file for item in items}
    if len(files) > 1:
        timed = [item for item in items if item.time is not None]
        timed = [item for item in timed if item.file.endswith(".json")] or timed  # their clock is exact, and UTC
        if timed:
            return min(timed, key=lambda item: (item.time or 0.0, item.line))
    return min(items, key=lambda item: (item.line, -item.weight))
