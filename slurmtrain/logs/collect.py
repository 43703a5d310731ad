"""Turns lines that hold a literal into findings, and counts the progress that follows them."""

from __future__ import annotations

import re
from math import isfinite, isnan

from slurmtrain.core.findings import Finding, Findings
from slurmtrain.core.rules import Rule
from slurmtrain.logs.lines import Line, clean, find_time, split_prefix, unescape_json
from slurmtrain.logs.matcher import CompiledRule, Matcher
from slurmtrain.logs.progress import HINTS, is_finished, is_progress, loss_of

MAX_KEYS = 20_000
MAX_EPISODES = 6
MAX_WATCHED = 5_000
MAX_CONTEXTS = 1_000
NEW_EPISODE = 3
CONTEXT = 6144
AHEAD = 1536
CACHE = 2_048
PROOF = 90
MILD = 18
OWN_TAIL = 3

Stream = tuple[int | None, int | None, int | None]

_SOURCE = re.compile(
    r"\s*(?:❱ ?)?\d* ?│|\+{1,3} |\s{4,}(?:raise|return|assert|except|if|elif|else|for|while|with|print|logger|logging"
    r"|log|self|def|from|import|try|warnings|yield|await|async"
    r"|msg|message|f?\"|f?'|#|[a-z_][\w.\[\]]* ?(?:[-+*/|]?= |\())"
)
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.){0,12}\w*(?:Error|Exception): ")
_TRACEBACK = "Traceback (most recent call last)"
_CAUGHT = re.compile(
    r"(?i)exception ignored in|--- logging error ---|error in atexit|never retrieved|\bretry(?:ing)?\b"
    r"|\bskip(?:ping|ped)?\b|\bignor(?:ing|ed)\b|\bcaught\b|falling back"
    r"|\bwarn(?:ing)?\b.*(?:fail|error|exception)|non-fatal"
)
_DISTINCT = ("node", "rank", "tasks", "xid")  # groups whose values make two matches of one rule two findings
_MILD = re.compile(r"(?<!NCCL )\bWARN(?:ING)?\b|\[NeMo W |UserWarning: ")
_DURING = "During handling of the above exception"


class Collector:
    """Holds what one log has shown so far."""

    def __init__(self, matcher: Matcher, name: str) -> None:
        self._matcher = matcher
        self.result = Findings(name, rules=matcher.rules)
        self._episodes: dict[tuple[str, Stream], list[Finding]] = {}
        self._streams: dict[int, Stream] = {}
        self._cache: dict[str, list[tuple[CompiledRule, re.Match[str]]]] = {}
        self._watching = False
        self._watch_from = 0
        self._watched = 0
        self._contexts = 0
        self._progress: dict[Stream, int] = {}
        self._metrics: dict[str, tuple[int, Finding]] = {}
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
        for entry, found in self._matches(line.body):
            if known and _competes(entry.rule):
                continue
            known |= self._hit(entry, found, line, buffer, start, stop, number) and _competes(entry.rule)
        if self._watching:
            self._watch_from = stop

    def _note(self, line: Line) -> None:
        result = self.result
        if line.rank is not None:
            result.max_rank = max(result.max_rank, line.rank)
        if line.label is not None:
            result.max_label = max(result.max_label, line.label)
        if line.rank is not None and line.label is not None and line.label != line.rank:
            self._label_differs = True
        if line.local_rank is not None:
            result.max_local_rank = max(result.max_local_rank, line.local_rank)
        if line.node is not None and len(result.hosts) < MAX_KEYS:
            result.hosts.add(line.node)

    def _matches(self, body: str) -> list[tuple[CompiledRule, re.Match[str]]]:
        known = self._cache.get(body)
        if known is not None:
            return known
        if len(self._cache) >= CACHE:
            self._cache.clear()
        found = self._search(body)
        self._cache[body] = found
        return found

    def _search(self, body: str) -> list[tuple[CompiledRule, re.Match[str]]]:
        parts = [body]
        if body.startswith("{") and '"' in body:
            parts = unescape_json(body) or parts
        matches: list[tuple[CompiledRule, re.Match[str]]] = []
        for part in parts:
            for entry in self._matcher.candidates(part.lower()):
                rule = entry.rule
                if rule.kind in ("cause", "victim", "notice") and _SOURCE.match(part):
                    continue
                found = entry.search(part)
                if found is not None and not entry.excluded(part):
                    matches.append((entry, found))
        if any(entry.rule.kind == "ignore" for entry, _ in matches):
            return [pair for pair in matches if pair[0].rule.own or pair[0].rule.kind not in ("cause", "victim")]
        return sorted(matches, key=_precedence)

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
            self._metric(rule, found, line, number)
            return False
        if rule.kind == "mark":
            self._segment += 1
            self.result.segments.append(number)
            return False
        named = found.groupdict()
        key = ("\0".join((rule.id, *(named.get(part) or "" for part in _DISTINCT))), line.stream)
        episodes = self._episodes.get(key)
        progress = self.result.progress
        if (
            episodes
            and episodes[-1].segment == self._segment
            and progress - episodes[-1].last_progress < NEW_EPISODE
            and (episodes[-1].count > 2 or not entry.needs_context)
        ):
            self._repeat(episodes[-1], line, number, progress)
            return True
        weight, handled = rule.weight, False
        if _is_mild(rule, line.body):
            weight = min(weight, MILD)
        if (rule.near or rule.then) and self._contexts >= MAX_CONTEXTS:
            return False
        if entry.needs_context and self._contexts < MAX_CONTEXTS:
            self._contexts += 1
            before = self._context(buffer[max(0, start - CONTEXT) : start], line.stream, before=True)
            if not entry.near(before):
                return False
            after = self._context(buffer[stop : stop + AHEAD], line.stream, before=False)
            if not entry.followed(after):
                return False
            if rule.exceptions is not None:
                weight, handled = _judge_exception(weight, before, after)
        if episodes and episodes[-1].segment == self._segment and progress - episodes[-1].last_progress < NEW_EPISODE:
            self._repeat(episodes[-1], line, number, progress)
            return True
        self._keep(key, episodes, _finding(rule, found, line, number, weight), handled=handled)
        return True

    def _repeat(self, finding: Finding, line: Line, number: int, progress: int) -> None:
        finding.count += 1
        finding.last_line = number
        finding.last_progress = progress
        if finding.count <= 20 and _RAISED.match(line.body) and not _RAISED.match(finding.shown_text):
            finding.shown_line, finding.shown_text = number, clean(line.body)

    def _keep(
        self, key: tuple[str, Stream], episodes: list[Finding] | None, finding: Finding, *, handled: bool
    ) -> None:
        finding.handled = handled
        finding.segment = self._segment
        finding.progress = finding.last_progress = self.result.progress
        finding.rank_progress = self._progress.get(key[1], 0)
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

    def _metric(self, rule: Rule, found: re.Match[str], line: Line, number: int) -> None:
        metric = rule.metric
        if metric is None:
            return
        try:
            value = float(found.group(1))
        except (ValueError, IndexError):
            return
        count, finding = self._metrics.get(rule.id, (0, None)) if rule.id in self._metrics else (0, None)
        if _holds(value, metric.op, metric.value):
            finding = finding or _finding(rule, found, line, number, rule.weight)
            self._metrics[rule.id] = (count + 1, finding)
        else:
            self._metrics.pop(rule.id, None)

    def _context(self, data: bytes, stream: Stream, *, before: bool) -> str:
        """The lines around, of the same stream where streams are marked."""
        text = data.decode("utf-8", "backslashreplace").replace("\r", "\n")
        lines = text.split("\n")
        if before and len(lines) > 1:
            lines = lines[1:] if len(data) >= CONTEXT else lines
        if stream == (None, None, None):
            return "\n".join(lines)
        kept = []
        for item in lines:
            peeled = split_prefix(item)
            if peeled.stream in (stream, (None, None, None)):
                kept.append(peeled.body)
        return "\n".join(kept)

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
        for rule_id, (count, finding) in self._metrics.items():
            rule = self._matcher.rules.by_id()[rule_id]
            if rule.metric is not None and count >= rule.metric.times:
                finding.count = count
                self._episodes[(rule_id, (None, None, None))] = [finding]
        found = [item for episodes in self._episodes.values() for item in episodes]
        for item in found:
            stream = self._streams.get(id(item), (None, None, None))
            item.rank = self._resolve(item.rank, stream)
            item.after_own = self._progress.get(stream, 0) - item.rank_progress
            item.stream = stream
            item.file = result.name
        result.findings = sorted(found, key=lambda item: item.line)
        _read_tail(result, tail, end_line)
        return result

    def _resolve(self, rank: int | None, stream: Stream) -> int | None:
        global_rank, label, local = stream
        if rank is not None and global_rank is None and label is None and local is None:
            return rank
        if global_rank is not None:
            return global_rank
        if local is not None:
            return local if label is None else label * (self.result.max_local_rank + 1) + local
        if label is not None and self._label_differs:
            return rank
        return label if label is not None else rank


def _is_mild(rule: Rule, body: str) -> bool:
    """Whether the line calls itself a warning: then it is a cause only where nothing else is found."""
    if rule.kind != "cause" or rule.weight >= PROOF or rule.cause in ("time_limit", "preempted"):
        return False
    return _MILD.search(body, 0, 200) is not None


def _competes(rule: Rule) -> bool:
    """Whether only one such rule may claim a line; a user's own rules and the other kinds always count."""
    return rule.kind in ("cause", "victim") and not rule.own and rule.metric is None


def _precedence(pair: tuple[CompiledRule, re.Match[str]]) -> tuple[bool, int, int]:
    rule = pair[0].rule
    return (rule.fallback, -rule.weight, pair[0].order)


def _finding(rule: Rule, found: re.Match[str], line: Line, number: int, weight: int) -> Finding:
    values = {key: clean(value, 120) for key, value in found.groupdict().items() if value is not None}
    rank = line.rank
    if rank is None and values.get("rank", "").isdigit():
        rank = int(values["rank"])
    elif rank is None and line.label is None and line.local_rank is None:
        rank = line.mentioned_rank
    return Finding(
        rule=rule.id,
        cause=rule.cause,
        kind=rule.kind,
        weight=weight,
        line=number,
        text=clean(line.body),
        rank=rank,
        node=values.get("node") or line.node,
        time=line.time,
        last_line=number,
        shown_line=number,
        shown_text=clean(line.body),
        values=values,
        source=rule,
    )


def _judge_exception(weight: int, before: str, after: str) -> tuple[int, bool]:
    """Whether the traceback that ends here was fatal: lower the weight of a caught one, mark a chained one."""
    at = before.rfind(_TRACEBACK)
    handled = _DURING in after[:600]
    if handled:
        weight -= 12
    if at < 0:
        return weight - (0 if 'File "' in before else 8), handled
    lead = before[:at].rstrip("\n ").rsplit("\n", 1)[-1]
    if _CAUGHT.search(lead[-300:]):
        weight -= 30
    return weight, handled


def _holds(value: float, op: str, limit: float) -> bool:
    if op == "nan":
        return isnan(value)
    return {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}[op]


def _read_tail(result: Findings, tail: bytes, end_line: int) -> None:
    lines = tail.decode("utf-8", "backslashreplace").split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    numbered = [(end_line - len(lines) + at, text) for at, text in enumerate(lines)]
    own_lines = 0
    for number, text in reversed(numbered[-400:]):
        part = text.rstrip("\r").rsplit("\r", 1)[-1][:2000]
        if "slurmstepd" in part or part.startswith("srun:") or "CANCELLED AT" in part:
            if result.stop_time is None and "CANCELLED AT" in part:
                result.stop_time = find_time(part)
        elif part.strip() and own_lines < OWN_TAIL:
            own_lines += 1
            result.end_time = find_time(part) if result.end_time is None else result.end_time
            if own_lines == 1:
                result.last_line, result.last_text = number, clean(part)
    _read_losses(result, [text for _, text in numbered])
    result.tail = [(number, clean(text.rsplit("\r", 1)[-1])) for number, text in numbered[-40:] if text.strip()]


def _read_losses(result: Findings, lines: list[str]) -> None:
    for text in reversed(lines):
        for part in reversed(text.rstrip("\r").split("\r")[-20:]):
            if "loss" not in part and "Loss" not in part:
                continue
            value = loss_of(part)
            if value is None:
                continue
            if isfinite(value):
                return
            result.nan_run += 1
