"""Turns lines that hold a literal into findings, and counts the progress that follows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurmtrain.core.findings import Finding, Findings
from slurmtrain.core.rules import Rule
from slurmtrain.logs.lines import HET_STRIDE, Line, clean, find_time, split_prefix
from slurmtrain.logs.match_line import MILD, LineMatcher, competes, is_mild
from slurmtrain.logs.matcher import CompiledRule, Matcher
from slurmtrain.logs.metrics import Metrics
from slurmtrain.logs.neighbours import AHEAD, CONTEXT, Stream, judge_exception, read_context
from slurmtrain.logs.progress import HINTS, is_finished, is_progress
from slurmtrain.logs.tail import read_tail

MAX_KEYS = 20_000
MAX_EPISODES = 6
MAX_WATCHED = 5_000
MAX_CONTEXTS = 1_000
NEW_EPISODE = 3

_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.){0,12}\w*(?:Error|Exception): ")
_DISTINCT = ("node", "rank", "tasks", "xid", "group")  # groups whose values make two matches of one rule two findings


class Collector:
    """Holds what one log has shown so far."""

    def __init__(self, matcher: Matcher, name: str) -> None:
        self._matcher = matcher
        self.result = Findings(name, rules=matcher.rules)
        self._episodes: dict[tuple[str, Stream], list[Finding]] = {}
        self._streams: dict[int, Stream] = {}
        self._lines = LineMatcher(matcher)
        self._watching = False
        self._watch_from = 0
        self._watched = 0
        self._contexts = 0
        self._progress: dict[Stream, int] = {}
        self._metrics = Metrics()
        self._label_differs = False
        self._segment = 0

    def line(self, buffer: bytes, start: int, stop: int, number: int, head: bytes) -> None:
        """Match one line, given where it is in the buffer; `head` is the beginning of a long line's first window."""
        text = buffer[start:stop].decode("utf-8", "backslashreplace").rstrip()
        line = split_prefix(text)
        if head:
            first = split_prefix(head.decode("utf-8", "backslashreplace"))
            line.rank, line.label, line.local_rank = first.rank, first.label, first.local_rank
            line.node, line.time = first.node or line.node, first.time or line.time
        self._note(line)
        known = False
        matches = self._lines.find(line.body)
        for entry, found, part in matches:
            if known and competes(entry.rule):
                continue
            line.part = part
            known |= self._hit(entry, found, line, buffer, start, stop, number) and competes(entry.rule)
        if self._watching:
            if not matches:  # its literal meant nothing: it may be progress like any other line
                self._progress_line(buffer[start : min(stop, start + 4096)])
            self._watch_from = stop

    def _note(self, line: Line) -> None:
        result = self.result
        if line.rank is not None:
            result.max_rank = max(result.max_rank, line.rank)
        if line.label is not None and line.label >= HET_STRIDE:
            result.tasks_differ = True
        elif line.label is not None:
            result.max_label = max(result.max_label, line.label)
        if line.rank is not None and line.label is not None and line.label != line.rank:
            self._label_differs = result.tasks_differ = True
        if line.local_rank is not None:
            result.max_local_rank = max(result.max_local_rank, line.local_rank)
            result.tasks_differ = True
        if line.node is not None and len(result.hosts) < MAX_KEYS:
            result.hosts.add(line.node)

    def _hit(
        self,
        entry: CompiledRule,
        found: re.Match[str],
        line: Line,
        buffer: bytes,
        start: int,
        stop: int,
        number: int,
    ) -> bool:
        """Record one match; False when what the rule wants nearby is not there."""
        rule = entry.rule
        if rule.kind == "ignore":
            return False
        if rule.metric is not None:
            finding = _finding(rule, found, line, number, rule.weight, {})
            finding.segment = self._segment
            self._metrics.take(rule, found, finding, line.stream)
            return False
        if rule.kind == "mark":
            self._segment += 1
            self._metrics = Metrics()  # another launch's values say nothing about this one
            self.result.segments.append(number)
            return False
        named = found.groupdict()
        key = ("\0".join((rule.id, *(named.get(part) or "" for part in _DISTINCT))), line.stream)
        known = self._current_episode(key)
        if known is not None and (known.count > 2 or not entry.needs_context):
            self._repeat(known, line, number)
            return True
        judged = self._judge(entry, line, buffer, start, stop)
        if judged is None:
            return False
        named |= judged.values
        if known is not None:
            self._repeat(known, line, number)
            if rule.kind == "launcher" and judged.values:
                _set_values(known, named)
            return True
        self._keep(key, _finding(rule, found, line, number, judged.weight, named), handled=judged.handled)
        return True

    def _current_episode(self, key: tuple[str, Stream]) -> Finding | None:
        """The finding that a new match would only repeat: same launch, and no progress in between."""
        episodes = self._episodes.get(key)
        if not episodes or episodes[-1].segment != self._segment:
            return None
        last = episodes[-1]
        return last if self.result.progress - last.last_progress < NEW_EPISODE else None

    def _judge(self, entry: CompiledRule, line: Line, buffer: bytes, start: int, stop: int) -> _Judged | None:
        """What the lines around say; None when what must be near is not."""
        rule = entry.rule
        weight = min(rule.weight, MILD) if is_mild(rule, line.body) else rule.weight
        if not entry.needs_context:
            return _Judged(weight)
        if self._contexts >= MAX_CONTEXTS * (1 if rule.kind != "launcher" else 2):
            return None if rule.near or rule.then else _Judged(weight)
        self._contexts += 1
        before = read_context(buffer[max(0, start - CONTEXT) : start], line.stream, before=True)
        after = read_context(buffer[stop : stop + AHEAD], line.stream, before=False)
        near, then = entry.near(before), entry.followed(after)
        if line.part != line.body:  # the stack is in the same JSON message
            before += line.body
        if near is None or then is None:
            return None
        weight, handled = judge_exception(weight, before, after) if rule.exceptions is not None else (weight, False)
        return _Judged(weight, handled, {**near, **then})

    def _repeat(self, finding: Finding, line: Line, number: int) -> None:
        finding.count += 1
        finding.last_line = number
        finding.last_progress = self.result.progress
        if finding.count <= 20 and _RAISED.match(line.body) and not _RAISED.match(finding.shown_text):
            finding.shown_line, finding.shown_text = number, clean(line.body)

    def _keep(self, key: tuple[str, Stream], finding: Finding, *, handled: bool) -> None:
        finding.handled = handled
        finding.segment = self._segment
        finding.progress = finding.last_progress = self.result.progress
        finding.rank_progress = self._progress.get(key[1], 0)
        episodes = self._episodes.get(key)
        if episodes is None:
            if len(self._episodes) >= MAX_KEYS:
                self.result.truncated = True
                return
            episodes = self._episodes[key] = []
        episodes.append(finding)
        if len(episodes) > MAX_EPISODES:
            del episodes[1]
        self._streams[id(finding)] = key[1]
        if finding.kind != "notice":
            self._watched = 0
            self._watching = True

    def find_metric(self) -> Finding | None:
        """The first metric rule, in the order of the rules, whose last values are as it says."""
        return next(iter(self._metrics.reached()), None)

    def watch(self, buffer: bytes, upto: int) -> None:
        """Count lines of progress between the last finding and `upto`."""
        if not self._watching or upto <= self._watch_from:
            return
        if self._watched >= MAX_WATCHED:
            self._watch_from = upto
            return
        region = buffer[self._watch_from : upto].lower()
        base, position = self._watch_from, 0
        for found in HINTS.finditer(region):
            if found.start() < position:
                continue
            start = max(region.rfind(b"\n", 0, found.start()), region.rfind(b"\r", 0, found.start())) + 1
            end = region.find(b"\n", found.start())
            end = len(region) if end < 0 else end
            back = region.find(b"\r", found.start(), end)
            end = back if back >= 0 else end
            position = end
            self._progress_line(buffer[base + start : base + min(end, start + 4096)])
        self._watch_from = upto

    def _progress_line(self, data: bytes) -> None:
        line = split_prefix(data.decode("utf-8", "replace"))
        if is_progress(line.body):
            self._watched += 1
            self.result.progress += 1
            if len(self._progress) < MAX_KEYS:
                self._progress[line.stream] = self._progress.get(line.stream, 0) + 1
        elif is_finished(line.body):
            self.result.finished = self.result.progress + 1
            self.result.progress += 1

    def rebase(self, shift: int) -> None:
        """The buffer lost its first `shift` bytes."""
        self._watch_from = max(0, self._watch_from - shift)

    def finish(self, tail: bytes, end_line: int, lines: int) -> Findings:
        """Order the findings, resolve ranks, and read the tail."""
        result = self.result
        result.lines = lines
        for finding in self._metrics.reached():
            self._episodes[(finding.rule, finding.stream)] = [finding]
        found = [item for episodes in self._episodes.values() for item in episodes]
        for item in found:
            stream = self._streams.get(id(item), (None, None, None))
            item.rank = self._resolve(item.rank, stream) if item.kind != "launcher" else _listed_rank(item, stream)
            result.tasks_differ |= item.kind == "launcher" and item.values.get("local", "0") != "0"
            item.after_own = self._progress.get(stream, 0) - item.rank_progress
            item.stream = stream
            item.file = result.name
        result.findings = sorted(found, key=lambda item: item.line)
        read_tail(result, tail, end_line)
        return result

    def _resolve(self, rank: int | None, stream: Stream) -> int | None:
        global_rank, label, local = stream
        if rank is not None and global_rank is None and label is None and local is None:
            return rank
        if global_rank is not None:
            return global_rank
        if local is not None:
            return local if label is None else (label % HET_STRIDE) * (self.result.max_local_rank + 1) + local
        if label is not None and (self._label_differs or label >= HET_STRIDE):
            return rank
        return label if label is not None else rank


@dataclass(frozen=True, slots=True)
class _Judged:
    """What the lines around a match say: its weight, whether it was handled, and the named groups found there."""

    weight: int
    handled: bool = False
    values: Mapping[str, str | None] = field(default_factory=dict)


def _listed_rank(item: Finding, stream: Stream) -> int | None:
    """The rank that a launcher's line names; what it prints is under its own task's label."""
    named = item.values.get("rank", "")
    return int(named) if named.isdigit() else stream[0]


def _set_values(finding: Finding, named: Mapping[str, str | None]) -> None:
    finding.values = {key: clean(value, 120) for key, value in named.items() if value is not None}
    when = finding.values.get("when")
    finding.time = find_time(when) if when is not None else finding.time


def _finding(
    rule: Rule, found: re.Match[str], line: Line, number: int, weight: int, named: Mapping[str, str | None]
) -> Finding:
    values = {key: clean(value, 120) for key, value in named.items() if value is not None}
    rank = line.rank
    if rank is None and values.get("rank", "").isdigit():
        rank = int(values["rank"])
    elif rank is None and line.label is None and line.local_rank is None:
        rank = line.mentioned_rank
    when = find_time(values["when"]) if "when" in values else None
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        kind=rule.kind,
        weight=weight,
        line=number,
        text=clean(line.part or line.body),
        rank=rank,
        node=values.get("node") or line.node,
        time=line.time if when is None else when,
        last_line=number,
        shown_line=number,
        shown_text=clean(line.part or line.body),
        values=values,
        source=rule,
    )
