"""From facts and findings to one diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurmtrain.core.blame import foreign_memory_gib, node_of, suspects_of
from slurmtrain.core.causes import CAUSES, Cause
from slurmtrain.core.diagnosis.cross_check import cross_check
from slurmtrain.core.diagnosis.culprit import Culprit, find_culprit, tasks_differ
from slurmtrain.core.diagnosis.model import Diagnosis, EvidenceLine
from slurmtrain.core.diagnosis.select import Evidence, gather
from slurmtrain.core.diagnosis.states import Verdict, decide_by_state, fact_rule_holds, facts_allow
from slurmtrain.core.diagnosis.wording import sentence
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding, Findings
from slurmtrain.core.rules import Rule, RuleSet

MAX_EVIDENCE_LINES = 6
NO_LINE = 1 << 60
NEARBY = 60
ERROR_FILE = ".json"


def diagnose(facts: Facts, findings: Sequence[Findings], rules: RuleSet | None = None) -> Diagnosis:
    """What happened first, where, and whether a retry can help.

    `findings` holds one entry per log of the launch; `rules` is needed only when there is no log at all.
    """
    logs = list(findings) if findings or rules is None else [Findings("", rules=rules)]
    evidence = gather(facts, logs)
    verdict = cross_check(decide_by_state(facts, evidence), facts, evidence)
    answer = _describe(facts, evidence, verdict)
    rule = _own_rule(facts, evidence)
    return answer if rule is None else _apply_own(answer, rule[0], rule[1])


def _describe(facts: Facts, evidence: Evidence, verdict: Verdict) -> Diagnosis:
    cause = CAUSES[verdict.cause]
    finding = verdict.finding
    culprit = find_culprit(finding, evidence, facts)
    rank = culprit.rank
    node = _node_of(culprit, finding, evidence, facts)
    shown = _shown(finding, evidence)
    answer = Diagnosis(
        cause=cause.name,
        family=cause.family,
        retryable=cause.retryable,
        action=cause.action,
        rank=rank,
        node=node,
        file=(shown.file or None) if shown is not None else None,
        line=shown.shown_line if shown is not None else None,
        evidence=_evidence_lines(shown, evidence),
        confidence=round(max(0.05, min(verdict.confidence, 0.99)), 2),
        sentence=sentence(
            cause.name, rank, node, shown.shown_text if shown is not None else None, suspected=culprit.how is not None
        ),
        suspects=suspects_of(cause.name, finding, node, facts),
        rule=finding.rule if finding is not None else None,
        first_rung=cause.first_rung,
        infrastructure=cause.infrastructure,
        notes=tuple(note for note in (verdict.note, *verdict.doubts, _culprit_note(culprit)) if note),
        advice=(finding.source.advice if finding is not None and finding.source is not None else None) or cause.advice,
    )
    return _override(answer, cause, finding, evidence)


def _culprit_note(culprit: Culprit) -> str | None:
    return f"rank {culprit.rank} is suspected: {culprit.how}" if culprit.how is not None else None


def _node_of(culprit: Culprit, finding: Finding | None, evidence: Evidence, facts: Facts) -> str | None:
    """Where the culprit ran; the node of a line that only complains about it says nothing."""
    if culprit.node is not None and culprit.node != "localhost":
        return culprit.node
    own = finding if culprit.how is None else None
    per_task = 1
    if tasks_differ(evidence):
        per_task = facts.local_world_size or 1 + max((log.max_local_rank for log in evidence.logs), default=-1)
    return node_of(own, culprit.rank, facts, evidence.ends, ranks_per_task=per_task)


def _override(answer: Diagnosis, cause: Cause, finding: Finding | None, evidence: Evidence) -> Diagnosis:
    """Answers that the evidence changes."""
    rule = finding.source if finding is not None else None
    if rule is not None and rule.cause == cause.name and (rule.action is not None or rule.retryable is not None):
        answer = replace(
            answer,
            action=rule.action or answer.action,
            retryable=answer.retryable if rule.retryable is None else rule.retryable,
            first_rung=rule.first_rung or answer.first_rung,
        )
    if cause.name == "slurm_launch_failed":
        nodes = {item.values["node"] for item in evidence.causes if item.cause == cause.name and "node" in item.values}
        if len(nodes) == 1:
            return replace(answer, action="requeue-exclude-node", first_rung="requeue_exclude", node=nodes.pop())
    if cause.name == "cuda_oom" and finding is not None and foreign_memory_gib(finding.text) is not None:
        note = "another process holds most of the GPU's memory: the node is at fault"
        return replace(
            answer,
            retryable=True,
            action="requeue-exclude-node",
            first_rung="requeue_exclude",
            infrastructure=True,
            notes=(*answer.notes, note),
        )
    return answer


def _shown(finding: Finding | None, evidence: Evidence) -> Finding | None:
    """The line to show: of what the same stream says about this cause nearby, the one that says most."""
    if finding is None or finding.line >= NO_LINE:
        return None
    near = [
        item
        for item in evidence.causes
        if item.cause == finding.cause
        and item.file == finding.file
        and item.stream == finding.stream
        and finding.line <= item.line <= finding.line + NEARBY
    ]
    shown = max(near, key=lambda item: (item.weight, -item.line), default=finding)
    return _in_the_log(shown, evidence) if shown.file.endswith(ERROR_FILE) else shown


def _in_the_log(shown: Finding, evidence: Evidence) -> Finding:
    """The line of the log that says what a rank's error file says, where there is one: a person reads the log."""
    for item in evidence.causes:
        if item.rank == shown.rank and item.rule == shown.rule and not item.file.endswith(ERROR_FILE):
            return item
    return shown


def _evidence_lines(shown: Finding | None, evidence: Evidence) -> tuple[EvidenceLine, ...]:
    if shown is None:
        return ()
    lines = [shown]
    for item in sorted(evidence.causes, key=lambda item: item.line):
        if item.cause == shown.cause and item is not shown and item.line < NO_LINE and len(lines) < MAX_EVIDENCE_LINES:
            lines.append(item)
    return tuple(EvidenceLine(item.shown_line, item.shown_text, item.file or None) for item in lines)


def _own_rule(facts: Facts, evidence: Evidence) -> tuple[Rule, Finding | None] | None:
    """The first rule of a user or a site that holds; then the first bundled rule that only has an outcome."""
    found = {item.rule: item for item in reversed(evidence.own)}
    for log in evidence.logs[:1]:
        for rule in log.rules.rules if log.rules is not None else ():
            if rule.own and rule.id in found and facts_allow(rule, facts):
                return rule, found[rule.id]
            if (rule.own or rule.cause is None) and fact_rule_holds(rule, facts):
                return rule, None
    return None


def _apply_own(answer: Diagnosis, rule: Rule, finding: Finding | None) -> Diagnosis:
    cause = CAUSES[rule.cause] if rule.cause is not None else None
    answer = replace(answer, rule=rule.id, outcome=rule.outcome)
    if cause is not None:
        answer = replace(
            answer,
            cause=cause.name,
            family=cause.family,
            retryable=cause.retryable,
            action=cause.action,
            first_rung=cause.first_rung,
            infrastructure=cause.infrastructure,
            confidence=rule.confidence or 0.95,
            advice=cause.advice,
        )
    if rule.advice is not None:
        answer = replace(answer, advice=rule.advice)
    if rule.outcome == "FailJob":
        answer = replace(answer, retryable=False, action="stop", first_rung="stop")
    if rule.action is not None or rule.retryable is not None:
        answer = replace(
            answer,
            action=rule.action or answer.action,
            retryable=answer.retryable if rule.retryable is None else rule.retryable,
            first_rung=rule.first_rung or answer.first_rung,
        )
    if finding is not None:
        answer = replace(
            answer,
            rank=finding.rank,
            line=finding.line,
            file=finding.file or None,
            evidence=(EvidenceLine(finding.line, finding.text, finding.file or None),),
        )
    quote = finding.text if finding is not None else None
    if cause is None and answer.cause in ("unknown", "no_failure"):
        return replace(answer, sentence=f"Rule {rule.id!r} applies" + (f": {quote}" if quote else "."))
    return replace(answer, sentence=sentence(answer.cause, answer.rank, answer.node, quote))
