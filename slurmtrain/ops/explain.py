"""What happened to a run, where, what shows it, what was decided and why, and what to do next: as values.

There is always an answer, also for a run that waits or runs, and for one whose directory is damaged.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slurmtrain.checkpoints.find import find_newest
from slurmtrain.core.avoid import Avoided, avoided_now
from slurmtrain.core.causes import CAUSES
from slurmtrain.core.decision import Decision, RunState, decision_to_dict
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.run import Attempt, Launch, Run
from slurmtrain.core.spec import Retry
from slurmtrain.errors import SlurmtrainError
from slurmtrain.logs.follow import last_redraw, read_lines
from slurmtrain.logs.lines import clean, strip_ansi
from slurmtrain.ops.advise import Step, advise
from slurmtrain.ops.budgets import BudgetUse, count_budgets
from slurmtrain.ops.logs import find_segments
from slurmtrain.ops.status import RunStatus, Sight, build_status, iso_time, see_jobs
from slurmtrain.ops.timeline import Entry, as_time, build_timeline, find_plan, look_for_damage, read_view
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import RunDir

_MAX_EVIDENCE = 12
_LAST_LINES = 8  # shown where nothing in the log tells why
_READ_BACK = 1 << 20  # bytes in which they are looked for


@dataclass(frozen=True, slots=True)
class Evidence:
    """One log line that shows it; ``line`` is 1-based, None where only the end of the output is shown."""

    file: str
    line: int | None
    text: str


@dataclass(frozen=True, slots=True)
class FirstExit:
    """The task of the failed launch that ended first, as srun said it."""

    rank: int | None
    node: str | None
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class LaunchRow:
    """One launch (``launch`` None: an attempt without one), as a line of a table."""

    attempt: int
    launch: int | None
    job_id: str
    nodes: str
    started_at: float | None
    duration_s: float | None
    outcome: str
    cause: str | None
    rank: int | None
    node: str | None
    decision: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer. ``trouble`` is None for a run that never failed; ``decision`` None before the first."""

    status: RunStatus
    headline: str
    trouble: Diagnosis | None = None
    trouble_in: tuple[int, int] | None = None  # attempt and launch
    first_exit: FirstExit | None = None
    evidence: tuple[Evidence, ...] = ()
    decision: Decision | None = None
    decided_by: str = ""
    carried_out: str = ""
    budgets: tuple[BudgetUse, ...] = ()
    avoided: tuple[Avoided, ...] = ()
    checkpoint: str | None = None
    advice: str = ""
    steps: tuple[Step, ...] = ()
    launches: tuple[LaunchRow, ...] = ()
    timeline: tuple[Entry, ...] = field(default=(), repr=False)
    slurm_error: str = ""
    damage: tuple[str, ...] = ()
    restarted_from: str | None = None
    restarted_as: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, kept stable (docs/commands.md)."""
        trouble = self.trouble
        attempt, launch = self.trouble_in or (None, None)
        return {
            **self.status.to_dict(),
            "headline": self.headline,
            "diagnosis": {**trouble.to_dict(), "attempt": attempt, "launch": launch} if trouble else None,
            "first_exit": asdict(self.first_exit) if self.first_exit else None,
            "evidence": [asdict(line) for line in self.evidence],
            "last_decision": decision_to_dict(self.decision) if self.decision else None,
            "decided_by": self.decided_by or None,
            "carried_out": self.carried_out or None,
            "budgets": {use.name: {"used": use.used, "allowed": use.allowed} for use in self.budgets},
            "avoided_nodes": [
                {**asdict(a), "since": iso_time(as_time(a.since)), "until": iso_time(as_time(a.until))}
                for a in self.avoided
            ],
            "checkpoint": self.checkpoint,
            "advice": self.advice,
            "next": [asdict(step) for step in self.steps],
            "launches": [{**asdict(row), "started_at": iso_time(row.started_at)} for row in self.launches],
            "timeline": [{**entry.to_dict(), "at": iso_time(entry.at)} for entry in self.timeline],
            "slurm_error": self.slurm_error or None,
            "damage": list(self.damage),
            "restarted_from": self.restarted_from,
            "restarted_as": list(self.restarted_as),
        }


def explain_run(run: RunDir, slurm: SlurmClient | None, now: float) -> Explanation:
    """Never raises for what is in, or missing from, the run directory."""
    view = read_view(run)
    sights, slurm_error = see_jobs([view], slurm)
    status = build_status(view, sights.get(run.run_id, Sight()), now)
    state, plan = view.state, find_plan(run)
    trouble, where = find_trouble(state)
    decision, decided_by = _last_decision(state)
    newest = find_newest(run.path, plan.spec.checkpoint) if plan else None
    return Explanation(
        status=status,
        headline=_headline(status, trouble),
        trouble=trouble,
        trouble_in=where,
        first_exit=_first_exit(state, where),
        evidence=tuple(_evidence(run, state, trouble, where)),
        decision=decision,
        decided_by=decided_by,
        carried_out=_carried_out(state),
        budgets=count_budgets(state, plan.spec if plan else None, now),
        avoided=tuple(avoided_now(state, plan.spec.retry if plan else Retry(), now)),
        checkpoint=str(newest.path) if newest else None,
        advice=_advice(trouble, status),
        steps=tuple(advise(status, trouble)),
        launches=tuple(_launch_rows(state)),
        timeline=tuple(build_timeline(view)),
        slurm_error=slurm_error,
        damage=tuple(dict.fromkeys(look_for_damage(view))),
        restarted_as=tuple(clean(str(name), 64) for name in state.restarted_as[-_MAX_EVIDENCE:]),
        restarted_from=str(plan.data["restarted_from"]) if plan and plan.data.get("restarted_from") else None,
    )


def find_trouble(state: Run) -> tuple[Diagnosis | None, tuple[int, int] | None]:
    """The newest diagnosis, and the attempt and launch (-1: the attempt as a whole) that it is about."""
    for attempt in reversed(state.attempts):
        if attempt.diagnosis is not None:
            return read_diagnosis(attempt.diagnosis), (attempt.number, -1)
        for launch in reversed(attempt.launches):
            if launch.diagnosis is not None:
                return read_diagnosis(launch.diagnosis), (attempt.number, launch.number)
    return None, None


def _first_exit(state: Run, where: tuple[int, int] | None) -> FirstExit | None:
    """srun's word about the launch that the trouble is about: it tells the culprit from the peers that it killed."""
    launch = _launch_at(state, where)
    if launch is None or launch.ended is None:
        return None
    exits = [e for e in launch.ended.rank_exits if isinstance(e, Mapping) and isinstance(e.get("order"), int)]
    first = min(exits, key=lambda e: int(e["order"]), default=None)
    if first is None:
        return None
    rank, code, signal = (v if isinstance(v := first.get(k), int) else None for k in ("rank", "exit_code", "signal"))
    return FirstExit(rank, str(first["node"]) if first.get("node") else None, code, signal)


def _launch_at(state: Run, where: tuple[int, int] | None) -> Launch | None:
    """The launch of (attempt, launch), the attempt's last one for -1."""
    attempt = next((a for a in state.attempts if where is not None and a.number == where[0]), None)
    if attempt is None or where is None or not attempt.launches:
        return None
    if where[1] < 0:
        return attempt.launches[-1]
    return next((launch for launch in attempt.launches if launch.number == where[1]), None)


def read_diagnosis(data: Mapping[str, Any]) -> Diagnosis:
    """A diagnosis of the journal; what cannot be read of it is left out."""
    bare = {"cause": str(data.get("cause", "unknown"))[:60], "sentence": str(data.get("sentence", ""))}
    whole = {"family": "unknown", "retryable": False, "action": "none", **data, **bare}
    try:
        return Diagnosis.from_dict(whole)
    except (TypeError, ValueError, KeyError, AttributeError):
        return Diagnosis.from_dict({"family": "unknown", "retryable": False, "action": "none", **bare})


def _headline(status: RunStatus, trouble: Diagnosis | None) -> str:
    """One sentence: what is the matter now."""
    if status.state is RunState.COMPLETED:
        tries = f" after {status.attempt + 1} attempts" if status.attempt else ""
        return f"The run has finished{tries}."
    if status.state in {RunState.FAILED, RunState.TERMINATED, RunState.HELD} and trouble is not None:
        return _sentence(trouble)
    if status.reason:
        return status.reason[:1].upper() + status.reason[1:] + "."
    since = (
        f" since {time.strftime('%H:%M:%S on %d %b', time.localtime(status.started_at))}" if status.started_at else ""
    )
    where = f" on {len(status.nodes)} node{'s' if len(status.nodes) != 1 else ''}" if status.nodes else ""
    return f"{status.state.value}{where}{since}."


def _sentence(trouble: Diagnosis) -> str:
    cause = CAUSES.get(trouble.cause)
    text = trouble.sentence or (cause.summary if cause else trouble.cause)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _evidence(run: RunDir, state: Run, trouble: Diagnosis | None, where: tuple[int, int] | None) -> list[Evidence]:
    if trouble is None or where is None:
        return []
    default = trouble.file or ""
    found = []
    for line in trouble.evidence[:_MAX_EVIDENCE]:
        number = line.line if isinstance(line.line, int) and line.line > 0 else None
        found.append(Evidence(clean(str(line.file or default), 300), number, clean(str(line.text))))
    return found or _last_lines(run, state, where)


def _last_lines(run: RunDir, state: Run, where: tuple[int, int]) -> list[Evidence]:
    """The end of the launch's output, where nothing in it was recognised."""
    launch = _launch_at(state, where)
    if launch is None:
        return []
    try:
        segments = find_segments(read_view(run), where[0], launch.number)
        segment = segments[-1]
        end = segment.end if segment.end is not None else segment.path.stat().st_size
        lines = deque(read_lines(segment.path, max(segment.start, end - _READ_BACK), end), maxlen=_LAST_LINES)
    except (OSError, IndexError, SlurmtrainError):
        return []
    texts = (last_redraw(strip_ansi(line)).decode("utf-8", "replace").rstrip("\n") for line in lines)
    return [Evidence(str(segment.path), None, clean(text)) for text in texts if text.strip()]


def _last_decision(state: Run) -> tuple[Decision | None, str]:
    for attempt in reversed(state.attempts):
        if attempt.decision is not None:
            return attempt.decision, str(attempt.decided_by)
        decided = [launch.decision for launch in attempt.launches if launch.decision is not None]
        if decided:
            return decided[-1], "agent"
    return None, ""


def _carried_out(state: Run) -> str:
    attempt = state.last_attempt
    if attempt is None or not attempt.acted:
        return ""
    last = attempt.acted[-1]
    return str(last.detail or (f"{last.action} {'done' if last.accepted else 'not possible'}"))


def _advice(trouble: Diagnosis | None, status: RunStatus) -> str:
    if status.state is RunState.COMPLETED:
        return ""
    name = trouble.cause if trouble is not None else status.cause
    cause = CAUSES.get(name) if name else None
    return cause.advice if cause is not None else ""


def _launch_rows(state: Run) -> list[LaunchRow]:
    rows = []
    for attempt in state.attempts:
        rows += [_launch_row(attempt, launch) for launch in attempt.launches] or [_launch_row(attempt, None)]
    return rows


def _launch_row(attempt: Attempt, launch: Launch | None) -> LaunchRow:
    last = launch is None or launch is attempt.launches[-1]
    decision = launch.decision if launch is not None and launch.decision else attempt.decision if last else None
    data = launch.diagnosis if launch is not None and launch.diagnosis else attempt.diagnosis if last else None
    trouble = read_diagnosis(data) if data is not None else None
    started = launch.started if launch else attempt.started
    return LaunchRow(
        attempt=attempt.number,
        launch=launch.number if launch else None,
        job_id=str(attempt.started.job_id) if attempt.started else "",
        nodes=str(attempt.started.nodes) if attempt.started else "",
        started_at=as_time(started.at) if started else None,
        duration_s=as_time(launch.ended.duration_s) if launch and launch.ended else None,
        outcome=_outcome(attempt, launch),
        cause=trouble.cause if trouble else None,
        rank=trouble.rank if trouble else None,
        node=trouble.node if trouble else None,
        decision=decision.action.value.replace("_", " ") if decision else "",
    )


def _outcome(attempt: Attempt, launch: Launch | None) -> str:
    if launch is None:
        return str(attempt.ended.state) if attempt.ended else "no launch"
    if launch.ended is None:
        return str(attempt.ended.state) if attempt.ended else "lost" if attempt.decision else "running"
    if launch.ended.done:
        return "finished"
    asked = f" after {launch.ended.stop_reason}" if launch.ended.stop_reason else ""
    if asked and launch.stop is not None and launch.stop.detail:
        asked += f" ({launch.stop.detail})"
    return f"exit {launch.ended.exit_code}{asked}"
