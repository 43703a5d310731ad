"""From an end to a decision: read the log, diagnose, ask the ladder. Agent, gate and watcher judge by the same code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurmtrain.core.decision import Decision
from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Findings
from slurmtrain.core.policy import Ending, decide
from slurmtrain.core.rules import RuleSet
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Spec
from slurmtrain.errors import StoreError
from slurmtrain.logs.deadline import DeadlineError, deadline
from slurmtrain.logs.scan import scan_file
from slurmtrain.store.rundir import RunDir

SCAN_TIME_S = 60.0
TAIL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of a log that one launch wrote, in bytes; ``end`` None reads to the end."""

    path: Path
    start: int = 0
    end: int | None = None


def load_frozen_rules(run: RunDir) -> RuleSet:
    """The rules that were frozen at submission. Raises ``StoreError`` where they cannot be read."""
    try:
        return RuleSet.from_json(run.rules.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StoreError(f"cannot read the rules of the run, {run.rules}: {exc}") from exc


def diagnose_log(run: RunDir, facts: Facts, log: LogRange | None) -> Diagnosis:
    """What happened, from the facts and one launch's output. A log or rules that cannot be read leave the facts.

    Bounded in time: where the whole output takes too long its end is read alone.
    """
    try:
        rules = load_frozen_rules(run)
    except StoreError:
        return diagnose(facts, [])
    return diagnose(facts, [] if log is None else _scan(rules, log), rules)


def _scan(rules: RuleSet, log: LogRange) -> list[Findings]:
    for part in (log, _tail_of(log)):
        try:
            with deadline(SCAN_TIME_S):
                return [scan_file(part.path, rules, offset=part.start, end=part.end)]
        except DeadlineError:
            continue
        except OSError:
            return []
    return []


def _tail_of(log: LogRange) -> LogRange:
    try:
        end = log.end if log.end is not None else log.path.stat().st_size
    except OSError:
        return log
    return LogRange(log.path, max(log.start, end - TAIL_BYTES), end)


def decide_ending(
    run: Run,
    spec: Spec,
    diagnosis: Diagnosis,
    *,
    exit_code: int | None,
    script_alive: bool,
    stop_reason: str | None = None,
    done: bool = False,
    resumed_from: str | None = None,
) -> Decision:
    """The ladder's answer; ``run`` already holds this end and its diagnosis."""
    ending = Ending(
        cause=diagnosis.cause,
        sentence=diagnosis.sentence,
        exit_code=exit_code,
        script_alive=script_alive,
        stop_reason=stop_reason,
        done=done,
        suspects=tuple((suspect.node, suspect.confidence) for suspect in diagnosis.suspects),
        action=diagnosis.action,
        outcome=diagnosis.outcome,
        resumed_from=resumed_from,
    )
    return decide(run, ending, spec.retry)
