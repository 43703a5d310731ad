"""What Slurm's state decides, and where the text may overrule it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.diagnosis.select import PROOF, ROOT, STRONG_SYMPTOM, SYMPTOM, Evidence, choose
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding
from slurmtrain.core.rules import Rule

OLD_OUTPUT_S = 1800.0
NAN_RUN = 5
NEAR_LIMIT = 0.97
# Lines of progress after an error by which other ranks may still have gone on, with and without another symptom.
HARDLY_WENT_ON = 10
WENT_ON_BRIEFLY = 40

SIGNALS = {2: "SIGINT", 9: "SIGKILL", 15: "SIGTERM"}
STOP_CAUSES = {
    "time_limit": "time_limit",
    "preempted": "preempted",
    "user": "user_cancelled",
    "hang": "hang_no_progress",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause, the finding that shows it (if any), and how sure."""

    cause: str
    finding: Finding | None
    confidence: float
    note: str | None = None
    doubts: tuple[str, ...] = ()


def base_state(facts: Facts) -> tuple[str | None, bool]:
    """Slurm's word without ``by 1000``, and whether a person cancelled."""
    if facts.state is None:
        if facts.exit_code is None and facts.signal is None:
            return None, False
        return ("FAILED" if facts.exit_code or facts.signal else "COMPLETED"), False
    words = facts.state.strip().upper().replace("+", "").split()
    word = words[0] if words else ""
    person = facts.cancelled_by is not None or (word == "CANCELLED" and "BY" in words[1:])
    return (word or None), person


def decide_by_state(facts: Facts, evidence: Evidence) -> Verdict:
    """The verdict; never None."""
    state, person = base_state(facts)
    if state == "COMPLETED":
        return _completed(facts, evidence)
    if state == "OUT_OF_MEMORY" or facts.signal == 125:
        return Verdict("host_oom", _find(evidence, "host_oom") or _killed(evidence), 0.97)
    if state in ("NODE_FAIL", "BOOT_FAIL"):
        return _node_fail(evidence)
    if state == "PREEMPTED":
        return Verdict("preempted", _find(evidence, "preempted"), 0.97)
    if state == "DEADLINE":
        return Verdict("slurm_request_invalid", None, 0.8, "the job's deadline cannot be met")
    if state == "TIMEOUT":
        return _timeout(facts, evidence)
    if state == "CANCELLED":
        return _cancelled(facts, evidence, person=person)
    if state in ("REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"):
        return _requeued(facts, evidence)
    return _failed(facts, evidence, known=state is not None)


def _find(evidence: Evidence, cause: str) -> Finding | None:
    matching = [item for item in (*evidence.causes, *evidence.stops) if item.cause == cause]
    return min(matching, key=lambda item: (-(item.weight // 10), item.line), default=None)


def _killed(evidence: Evidence) -> Finding | None:
    for item in (*evidence.launcher, *evidence.ends):
        if item.values.get("code", item.values.get("code2")) in ("-9", "137") or item.values.get("how") == "Killed":
            return item
    return None


def _before_stop(evidence: Evidence) -> list[Finding]:
    """Causes that were there before Slurm ended the job; what comes after is a consequence, except proof."""
    stop = min((item.line for item in evidence.stops), default=None)
    if stop is None:
        return list(evidence.causes)
    return [item for item in evidence.causes if item.line < stop or item.weight >= PROOF]


def _completed(facts: Facts, evidence: Evidence) -> Verdict:
    run = max((log.nan_run for log in evidence.logs), default=0)
    if run >= NAN_RUN:
        return Verdict("nan_loss", _find(evidence, "nan_loss"), 0.6, "the job completed but its loss ended as NaN")
    step_failed = bool(facts.derived_exit_code) or bool(facts.derived_signal)
    ended_badly = any(item.values.get("how", "").startswith("Exited with exit code") for item in evidence.ends) or any(
        item.rule == "torchrun-child-failed" for item in evidence.launcher
    )
    root = choose([item for item in evidence.causes if item.weight >= ROOT])
    if root is not None and (step_failed or ended_badly) and not evidence.finished_last:
        return Verdict(
            root.cause or "unknown", root, 0.5, "Slurm says COMPLETED, the log shows a failed step at its end"
        )
    return Verdict("no_failure", None, 0.95 if root is None else 0.8)


def _node_fail(evidence: Evidence) -> Verdict:
    taken = next((item for item in evidence.causes if item.rule == "provider-takes-machine"), None)
    if taken is not None:
        return Verdict("preempted", taken, 0.9, "the provider took the machine, the node is not bad")
    return Verdict("node_fail", _find(evidence, "node_fail"), 0.97)


def _age(facts: Facts, evidence: Evidence) -> float | None:
    if facts.last_output_age_s is not None:
        return facts.last_output_age_s
    ages = [
        log.stop_time - log.end_time for log in evidence.logs if log.stop_time is not None and log.end_time is not None
    ]
    return min(ages, default=None)


def _last_output(evidence: Evidence) -> Finding | None:
    last = next((log for log in evidence.logs if log.last_line), None)
    if last is None:
        return None
    number, text = last.last_line, last.last_text
    return Finding("last-output", None, "stop", 0, number, text, shown_line=number, shown_text=text, file=last.name)


def _may_have_stalled(item: Finding) -> bool:
    """Whether the run may have hung from then on: a mere symptom after which its writer took another step did not."""
    return item.cause != "user_cancelled" and (item.weight >= STRONG_SYMPTOM or item.after_own == 0)


def _timeout(facts: Facts, evidence: Evidence) -> Verdict:
    stop = _find(evidence, "time_limit")
    found = choose([item for item in _before_stop(evidence) if _may_have_stalled(item)])
    if found is not None and found.weight >= SYMPTOM and found.cause != "time_limit":
        return Verdict(found.cause or "unknown", found, 0.7, "the job ran on until its time limit after this")
    if max((log.nan_run for log in evidence.logs), default=0) >= NAN_RUN:
        return Verdict("nan_loss", _find(evidence, "nan_loss"), 0.75, "the loss was NaN until the time limit")
    age = _age(facts, evidence)
    steps_age = facts.last_progress_age_s
    if age is not None and age >= OLD_OUTPUT_S and (steps_age is None or steps_age >= OLD_OUTPUT_S):
        note = f"the last output was {age / 3600:.1f} h before the time limit"
        return Verdict("hang_no_progress", _last_output(evidence) or stop, 0.85, note)
    if steps_age is not None and steps_age >= 2 * OLD_OUTPUT_S:
        note = f"it still printed, but its last step was {steps_age / 3600:.1f} h before the time limit"
        return Verdict("hang_no_progress", _last_output(evidence) or stop, 0.6, note)
    return Verdict("time_limit", stop, 0.97)


def _cancelled(facts: Facts, evidence: Evidence, *, person: bool) -> Verdict:
    plain = next(iter(evidence.stops), None)
    if facts.stop_sent is not None:
        return _asked(facts, evidence)
    if person:
        return Verdict("user_cancelled", plain, 0.97)
    for cause in ("time_limit", "node_fail", "preempted"):
        stop = next((item for item in evidence.stops if item.cause == cause), None)
        if stop is not None:
            return Verdict(cause, stop, 0.9)
    found = choose([item for item in _before_stop(evidence) if item.cause != "user_cancelled"])
    if found is not None and found.weight >= SYMPTOM:
        return Verdict(found.cause or "unknown", found, 0.7, "the job was cancelled after this")
    if facts.last_output_age_s is not None and facts.last_output_age_s >= OLD_OUTPUT_S:
        return Verdict("hang_no_progress", plain, 0.6, "it was cancelled long after its last output")
    return Verdict("user_cancelled", plain or _find(evidence, "user_cancelled"), 0.85)


def _asked(facts: Facts, evidence: Evidence) -> Verdict:
    """We asked for the stop ourselves: that is the cause, unless the log had shown another before."""
    cause = STOP_CAUSES.get(facts.stop_sent or "", "unknown")
    found = choose(_before_stop(evidence))
    limit = SYMPTOM if cause in ("hang_no_progress", "unknown") else PROOF
    if found is not None and found.weight >= limit:
        return Verdict(found.cause or "unknown", found, 0.75, f"the stop for {facts.stop_sent} came after this")
    return Verdict(cause, _find(evidence, cause), 0.9)


def _requeued(facts: Facts, evidence: Evidence) -> Verdict:
    found = choose(_before_stop(evidence))
    if found is not None and found.weight >= ROOT:
        return Verdict(found.cause or "unknown", found, 0.8)
    if _near_limit(facts):
        return Verdict("time_limit", _find(evidence, "time_limit"), 0.8)
    return Verdict("preempted", _find(evidence, "preempted"), 0.85)


def _near_limit(facts: Facts) -> bool:
    if facts.elapsed_s is None or not facts.time_limit_s:
        return False
    return facts.elapsed_s >= min(facts.time_limit_s * NEAR_LIMIT, facts.time_limit_s - 1)


def _failed(facts: Facts, evidence: Evidence, *, known: bool) -> Verdict:
    if facts.stop_sent is not None:
        return _asked(facts, evidence)
    items = [*evidence.causes, *_by_facts(facts, evidence)]
    stop = next((item for item in evidence.stops if item.cause is not None), None)
    found = choose(items if stop is None else [item for item in items if item in _before_stop(evidence)])
    if stop is not None and stop.cause == "time_limit" and (found is None or found.weight < ROOT):
        return _timeout(facts, evidence)
    if stop is not None and (found is None or found.weight < ROOT):
        return Verdict(stop.cause or "unknown", stop, 0.85)
    if not known:
        return _unknown_state(found, evidence)
    if found is not None and found.weight < ROOT:
        near = HARDLY_WENT_ON if found.weight >= SYMPTOM else WENT_ON_BRIEFLY
        found = choose(_barely_survived(evidence, near)) or found
    if found is not None:
        return Verdict(found.cause or "unknown", found, _sure(found))
    return _without_text(facts, evidence)


def _unknown_state(found: Finding | None, evidence: Evidence) -> Verdict:
    broke = bool(evidence.launcher or evidence.ends)
    if found is not None and (found.weight >= ROOT or broke or found.weight >= 30) and not evidence.finished_last:
        return Verdict(found.cause or "unknown", found, _sure(found) - 0.05)
    plain = next(iter(evidence.stops), None)
    if plain is not None:
        return Verdict("user_cancelled", plain, 0.6)
    if broke and not evidence.finished_last:
        return Verdict("unknown", None, 0.4)
    if not any(log.last_text.strip("\\x0… ") for log in evidence.logs):  # nothing, or NUL bytes
        return Verdict("unknown", None, 0.3, "the log is empty, and nothing is known from Slurm")
    return Verdict("no_failure", None, 0.7)


def _barely_survived(evidence: Evidence, lines: int = WENT_ON_BRIEFLY) -> list[Finding]:
    logs = {log.name: log for log in evidence.logs}
    return [
        item
        for item in evidence.survived
        if item.weight >= ROOT
        and item.file in logs
        and logs[item.file].progress - item.last_progress < lines
        and logs[item.file].finished <= item.last_progress
    ]


def _sure(found: Finding) -> float:
    if found.source is not None and found.source.confidence is not None:
        return found.source.confidence
    for limit, value in ((PROOF, 0.97), (70, 0.92), (ROOT, 0.8), (SYMPTOM, 0.65)):
        if found.weight >= limit:
            return value
    return 0.45


def _without_text(facts: Facts, evidence: Evidence) -> Verdict:
    last = choose(_barely_survived(evidence))
    if last is not None:
        return Verdict(last.cause or "unknown", last, 0.5, "the training went on for a little after this")
    if max((log.nan_run for log in evidence.logs), default=0) >= NAN_RUN:
        return Verdict("nan_loss", None, 0.6)
    codes = {facts.exit_code, facts.signal, facts.derived_exit_code, facts.derived_signal} - {None, 0}
    if codes & {130, 2} and not (facts.exit_code == 2 and facts.signal in (None, 0)):
        return Verdict("user_cancelled", None, 0.6)
    if codes & {143, 15} and _near_limit(facts):
        return Verdict("time_limit", None, 0.7)
    return Verdict("unknown", None, 0.4)


def _by_facts(facts: Facts, evidence: Evidence) -> list[Finding]:
    """Findings that Slurm's numbers give, without a line."""
    found = [
        _fact_finding(rule)
        for log in evidence.logs[:1]
        for rule in (log.rules.rules if log.rules is not None else ())
        if not rule.own and rule.cause is not None and fact_rule_holds(rule, facts)
    ]
    if facts.oom_kill_events or any(word.startswith("OUT_OF_MEMORY") for word in facts.step_states):
        found.append(_virtual("host_oom", 94))
    if missing_gpus(facts):
        # An error of a GPU program is what a missing GPU looks like; a KeyError is not.
        named = choose([item for item in evidence.causes if item.weight >= ROOT])
        explains = named is None or (named.cause is not None and CAUSES[named.cause].family == "gpu_app")
        found.append(_virtual("gpu_unavailable", PROOF if explains else ROOT))
    return found


def missing_gpus(facts: Facts) -> int:
    """How many of the allocated GPUs could not be opened; 0 also when it is not known."""
    if not facts.allocated_gpus or facts.visible_gpus is None:
        return 0
    return max(0, facts.allocated_gpus - facts.visible_gpus)


def _fact_finding(rule: Rule) -> Finding:
    return Finding(rule.id, rule.cause, rule.kind, rule.weight, 1 << 60, "", source=rule)


def _virtual(cause: str, weight: int) -> Finding:
    return Finding("facts", cause, "cause", weight, 1 << 60, "")


def fact_rule_holds(rule: Rule, facts: Facts) -> bool:
    """Whether a rule without a pattern holds for Slurm's facts."""
    if rule.reads_log or not (rule.exit_code or rule.signal or rule.state or rule.reason or rule.node):
        return False
    return facts_allow(rule, facts)


def facts_allow(rule: Rule, facts: Facts) -> bool:
    """Whether every fact condition of a rule holds."""
    state, _ = base_state(facts)
    codes = {facts.exit_code, facts.derived_exit_code, *(item.exit_code for item in facts.rank_exits)}
    signals = {facts.signal, facts.derived_signal, *(item.signal for item in facts.rank_exits)}
    checks = (
        not rule.exit_code or bool(codes & set(rule.exit_code)),
        not rule.signal or bool(signals & set(rule.signal)),
        not rule.state or (state or "") in rule.state,
        rule.reason is None or _matches(rule.reason, (facts.reason,)),
        rule.node is None or _matches(rule.node, (*facts.nodes, *facts.failed_nodes)),
    )
    return all(checks)


def _matches(pattern: str, values: Sequence[str]) -> bool:
    import re

    return any(re.search(pattern, value[:300]) for value in values)
