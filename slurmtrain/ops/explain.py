"""What happened to a run, where, what shows it, what was decided and why, and what to do next: as values.

There is always an answer, also for a run that waits or runs, and for one whose directory is damaged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from slurmtrain.core.avoid import Avoided, avoided_now
from slurmtrain.core.causes import CAUSES
from slurmtrain.core.decision import Decision, RunState, decision_to_dict
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.effective_time import EffectiveTime
from slurmtrain.core.run import Run
from slurmtrain.core.spec import Retry
from slurmtrain.evidence.findings import SceneFinding
from slurmtrain.logs.lines import clean
from slurmtrain.ops.advise import Step, advise
from slurmtrain.ops.budgets import BudgetUse, count_budgets
from slurmtrain.ops.extract import MAX_EVIDENCE, Evidence, find_evidence, launch_at
from slurmtrain.ops.interruption import Interruption, find_interruption, is_interruption
from slurmtrain.ops.launch_table import LaunchRow, build_launch_table, read_diagnosis
from slurmtrain.ops.pace import ended_as_nan
from slurmtrain.ops.places import Place, find_places
from slurmtrain.ops.scene import find_findings
from slurmtrain.ops.shipping.summary import RemoteCopy, read_copy
from slurmtrain.ops.spent import Saved, list_checkpoints, measure_run, time_to_dict, to_saved
from slurmtrain.ops.status import RunStatus, Sight, build_status, iso_time, see_jobs
from slurmtrain.ops.story import StoryLine, tell_story
from slurmtrain.ops.timeline import Entry, RunView, as_time, build_timeline, find_plan, look_for_damage, read_view
from slurmtrain.render.quoting import quote_argv
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import Plan, RunDir


@dataclass(frozen=True, slots=True)
class FirstExit:
    """The task of the failed launch that ended first, as srun said it."""

    rank: int | None
    node: str | None
    exit_code: int | None
    signal: int | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole answer. ``trouble`` is None for a run that never failed; ``decision`` None before the first."""

    status: RunStatus
    headline: str
    trouble: Diagnosis | None = None
    trouble_in: tuple[int, int] | None = None  # attempt and launch
    interruption: Interruption | None = None  # no failure, but why it did not run on
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
    command: str = ""  # of the training, as bash would read it
    story: tuple[StoryLine, ...] = field(default=(), repr=False)
    time: EffectiveTime = field(default_factory=EffectiveTime, repr=False)
    checkpoints: tuple[Saved, ...] = ()
    places: tuple[Place, ...] = ()
    findings: tuple[SceneFinding, ...] = ()  # of the scene of the launch that failed
    remote: RemoteCopy | None = None  # None where the job file ships nothing
    timeline: tuple[Entry, ...] = field(default=(), repr=False)
    slurm_error: str = ""
    damage: tuple[str, ...] = ()
    restarted_from: str | None = None
    restarted_as: tuple[str, ...] = ()
    view: RunView | None = field(default=None, repr=False)  # what all of it was read from
    plan: Plan | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, kept stable (docs/explain.md)."""
        trouble = self.trouble
        attempt, launch = self.trouble_in or (None, None)
        return {
            **self.status.to_dict(),
            "headline": self.headline,
            "diagnosis": {**trouble.to_dict(), "attempt": attempt, "launch": launch} if trouble else None,
            "interruption": _interruption_to_dict(self.interruption),
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
            "command": self.command,
            "story": [{**line.to_dict(), "at": iso_time(line.at)} for line in self.story],
            "time": time_to_dict(self.time),
            "checkpoints": [{**asdict(one), "at": iso_time(one.at)} for one in self.checkpoints],
            "findings": [one.to_dict() for one in self.findings],
            "remote_copy": self.remote.to_dict(iso_time(self.remote.looked_at)) if self.remote else None,
            "paths": [asdict(place) for place in self.places],
            "slurm_error": self.slurm_error or None,
            "damage": list(self.damage),
            "restarted_from": self.restarted_from,
            "restarted_as": list(self.restarted_as),
        }


def _interruption_to_dict(found: Interruption | None) -> dict[str, Any] | None:
    return {**found.to_dict(), "at": iso_time(found.at)} if found is not None else None


def explain_run(run: RunDir, slurm: SlurmClient | None, now: float) -> Explanation:
    """Never raises for what is in, or missing from, the run directory."""
    view = read_view(run)
    sights, slurm_error = see_jobs([view], slurm)
    status = build_status(view, sights.get(run.run_id, Sight()), now)
    state, plan = view.state, find_plan(run)
    trouble, where = find_trouble(state)
    decision, decided_by = _last_decision(state)
    checkpoints = list_checkpoints(view, plan)
    newest = str(checkpoints[0].path) if checkpoints else None
    return Explanation(
        status=status,
        headline=_headline(status, trouble, view),
        trouble=trouble,
        trouble_in=where,
        interruption=find_interruption(state, trouble, where),
        first_exit=None if is_interruption(trouble) else _first_exit(state, where),
        evidence=() if is_interruption(trouble) else tuple(find_evidence(view, trouble, where)),
        decision=decision,
        decided_by=decided_by,
        carried_out=_carried_out(state),
        budgets=count_budgets(state, plan.spec if plan else None, now),
        avoided=tuple(avoided_now(state, plan.spec.retry if plan else Retry(), now)),
        checkpoint=newest,
        advice=_advice(trouble, status),
        steps=tuple(advise(status, trouble)),
        launches=tuple(build_launch_table(state)),
        timeline=tuple(build_timeline(view)),
        command=quote_argv(plan.spec.command) if plan else "",
        story=tuple(tell_story(view, plan.spec.retry if plan else None)),
        time=measure_run(view, checkpoints, now),
        checkpoints=to_saved(checkpoints),
        places=tuple(find_places(view, where, newest)),
        findings=tuple(_findings(view, where)),
        remote=read_copy(run, plan.spec if plan else None),
        slurm_error=slurm_error,
        damage=tuple(dict.fromkeys(look_for_damage(view))),
        restarted_as=tuple(clean(str(name), 64) for name in state.restarted_as[-MAX_EVIDENCE:]),
        restarted_from=str(plan.data["restarted_from"]) if plan and plan.data.get("restarted_from") else None,
        view=view,
        plan=plan,
    )


def _findings(view: RunView, where: tuple[int, int] | None) -> list[SceneFinding]:
    launch = launch_at(view.state, where)
    return find_findings(view.run, where[0], launch.number) if where is not None and launch is not None else []


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
    launch = launch_at(state, where)
    if launch is None or launch.ended is None:
        return None
    exits = [e for e in launch.ended.rank_exits if isinstance(e, Mapping) and isinstance(e.get("order"), int)]
    first = min(exits, key=lambda e: int(e["order"]), default=None)
    if first is None:
        return None
    rank, code, signal = (v if isinstance(v := first.get(k), int) else None for k in ("rank", "exit_code", "signal"))
    return FirstExit(rank, str(first["node"]) if first.get("node") else None, code, signal)


def _headline(status: RunStatus, trouble: Diagnosis | None, view: RunView) -> str:
    """One sentence: what is the matter now."""
    if status.state is RunState.COMPLETED:
        tries = f" after {status.attempt + 1} attempts" if status.attempt else ""
        nan = ", but its last loss was no number: look before you use it" if ended_as_nan(view.run, view.state) else ""
        return f"The run has finished{tries}{nan}."
    if status.state in {RunState.FAILED, RunState.TERMINATED, RunState.HELD} and trouble is not None:
        return _sentence(trouble)
    launch = view.state.last_launch
    ended = launch.ended if status.state is RunState.STOPPED and launch is not None else None
    if status.reason and ended is not None and ended.saved:
        return f"{status.reason[:1].upper()}{status.reason[1:]}; {ended.saved}."
    if status.reason:
        return status.reason[:1].upper() + status.reason[1:] + "."
    attempt = view.state.last_attempt
    begun = as_time(attempt.started.at) if attempt is not None and attempt.started is not None else status.started_at
    since = f" since {time.strftime('%H:%M:%S on %d %b', time.localtime(begun))}" if begun else ""
    where = f" on {len(status.nodes)} node{'s' if len(status.nodes) != 1 else ''}" if status.nodes else ""
    return f"{status.state.value}{where}{since}."


def _sentence(trouble: Diagnosis) -> str:
    cause = CAUSES.get(trouble.cause)
    text = trouble.sentence or (cause.summary if cause else trouble.cause)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


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
