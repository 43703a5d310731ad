"""From an end to a decision: read the log, diagnose, ask the ladder. Agent, gate and watcher judge by the same code."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmtrain.checkpoints.find import find_newest
from slurmtrain.core.decision import Decision
from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Findings
from slurmtrain.core.policy import Ending, decide
from slurmtrain.core.rules import RuleSet
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Spec
from slurmtrain.errors import NotFoundError, StoreError
from slurmtrain.logs.deadline import DeadlineError, deadline
from slurmtrain.logs.error_files import scan_error_files
from slurmtrain.logs.pace import Begin, read_pace
from slurmtrain.logs.scan import scan_file, scan_part
from slurmtrain.store.rundir import HEARTBEAT, RunDir, find_node_logs

SCAN_TIME_S = 10.0  # nodes wait for this while the agent decides: about 1 GB of a common log
TAIL_TIME_S = 5.0
TAIL_BYTES = 16 << 20
PARTIAL = 0.8  # how much of the confidence is left where not everything was read


@dataclass(frozen=True, slots=True)
class LogRange:
    """The part of a log that one launch wrote, in bytes; ``end`` None reads to the end.

    ``folder`` is where its ranks may have left error files, and its nodes logs of their own: ``node_ends`` tells where
    one of them ends, by its name, where that is not the end of the file.
    """

    path: Path
    start: int = 0
    end: int | None = None
    folder: Path | None = None
    node_ends: Mapping[str, int] = field(default_factory=dict)

    def parts(self) -> list[tuple[Path, int, int | None]]:
        """File, first and last byte of everything that the launch wrote."""
        nodes = find_node_logs(self.folder) if self.folder is not None else []
        return [(self.path, self.start, self.end), *((path, 0, self.node_ends.get(path.name)) for path in nodes)]


def load_frozen_rules(run: RunDir) -> RuleSet:
    """The rules that were frozen at submission. Raises ``StoreError`` where they cannot be read."""
    try:
        return RuleSet.from_json(run.rules.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StoreError(f"cannot read the rules of the run, {run.rules}: {exc}") from exc


def diagnose_log(run: RunDir, facts: Facts, log: LogRange | None) -> Diagnosis:
    """What happened, from the facts and one launch's output. A log or rules that cannot be read leave the facts.

    Bounded in time: where the whole output takes too long its end is read alone, and the diagnosis says so.
    """
    try:
        rules = load_frozen_rules(run)
    except StoreError:
        return diagnose(facts, [])
    if log is None:
        return diagnose(facts, [], rules)
    facts = _with_target(run, facts, log)
    try:
        with deadline(SCAN_TIME_S):
            return diagnose(facts, [*_error_files(rules, log), *_scan_all(rules, log)], rules)
    except DeadlineError:
        return _from_the_end(rules, facts, log)


def _with_target(run: RunDir, facts: Facts, log: LogRange) -> Facts:
    """With the step that the training wants to reach, if it tells one, and how far its newest checkpoint is."""
    told = read_pace((log.folder or run.path) / HEARTBEAT, log.path, Begin(log.start), log.end)
    if facts.target_step is not None or told.target is None:
        return facts
    with contextlib.suppress(NotFoundError, StoreError):
        newest = find_newest(run.path, run.read_plan().spec.checkpoint)
        return replace(facts, target_step=told.target, newest_checkpoint_step=newest.step if newest else None)
    return facts


def _scan_all(rules: RuleSet, log: LogRange) -> list[Findings]:
    found = []
    for path, start, end in log.parts():
        with contextlib.suppress(OSError):
            found.append(scan_file(path, rules, offset=start, end=end))
    return found


def _error_files(rules: RuleSet, log: LogRange) -> list[Findings]:
    return scan_error_files(log.folder, rules) if log.folder is not None else []


def _from_the_end(rules: RuleSet, facts: Facts, log: LogRange) -> Diagnosis:
    parts = log.parts()
    try:
        with deadline(TAIL_TIME_S):
            found = [_scan_end(rules, *part, TAIL_BYTES // len(parts)) for part in parts]
            judged = diagnose(facts, [findings for findings, _ in found], rules)
    except (DeadlineError, OSError):
        return _partial(diagnose(facts, [], rules), f"the log could not be read within {SCAN_TIME_S:g} s")
    read = sum(size for _, size in found) / 2**20
    return _partial(judged, f"only the last {read:.0f} MiB of the output were read in the time there was")


def _scan_end(rules: RuleSet, path: Path, start: int, end: int | None, most: int) -> tuple[Findings, int]:
    """The last bytes of one file, and how many they are."""
    stop = end if end is not None else path.stat().st_size
    begin = max(start, stop - most)
    return scan_part(path, rules, start=begin, end=stop), stop - begin


def _partial(found: Diagnosis, note: str) -> Diagnosis:
    """Less sure, and without the numbers of lines that were counted from somewhere in the middle."""
    return replace(
        found,
        confidence=round(found.confidence * PARTIAL, 2),
        line=None,
        evidence=tuple(replace(line, line=0) for line in found.evidence),
        notes=(*found.notes, note),
    )


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
        now=time.time(),
    )
    return decide(run, ending, spec)
