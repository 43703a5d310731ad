"""Where runs stand: the journal of each joined with one look at Slurm for all. Works without Slurm, and says so."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import BaseState, StateFlag, is_running, is_terminal, is_waiting
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.core.run import Attempt, Run, advance
from slurmtrain.core.vocabulary import Stage, normal_stage, words_for
from slurmtrain.core.waiting import Waiting, explain_waiting
from slurmtrain.errors import SlurmtrainError
from slurmtrain.logs.pace import Told
from slurmtrain.ops.observe import build_job_seen
from slurmtrain.ops.pace import pace_to_dict, read_run_pace
from slurmtrain.ops.scene import SceneSeen, find_scene
from slurmtrain.ops.timeline import (
    RunView,
    as_time,
    ended_at,
    entered,
    find_plan,
    read_nodes,
    read_view,
    requested_stop,
)
from slurmtrain.ops.unsubmitted import NEVER_SUBMITTED_S
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.rundir import RunDir

_READERS = 8  # a network file system answers many at once; the parsing itself takes turns
_REPORT_WITHIN_S = 120.0  # a node that has not reported by then does not keep the run in Starting
WATCH_ONCE = "`slurmtrain watch --once` decides"


@dataclass(frozen=True, slots=True)
class RunStatus:
    """One row. Times are seconds since the epoch; ``reason`` is a sentence for a person, "" when all is well."""

    run_id: str
    name: str
    state: RunState
    stage: Stage | None = None
    job_id: str | None = None
    attempt: int | None = None
    launch: int | None = None
    nodes: tuple[str, ...] = ()
    nodes_reported: int = 0
    reason: str = ""
    waiting: Waiting | None = None
    cause: str | None = None
    decision: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    damage: tuple[str, ...] = ()
    pace: Told | None = None  # how far a running training is
    scene: SceneSeen | None = None  # of the newest failure

    def to_dict(self) -> dict[str, Any]:
        """The machine-readable shape, kept stable (docs/commands.md). Times are ISO 8601 in UTC."""
        return {
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state.value,
            "stage": self.stage.value if self.stage else None,
            "job_id": self.job_id,
            "attempt": self.attempt,
            "launch": self.launch,
            "nodes": list(self.nodes),
            "reason": self.reason,
            "cause": self.cause,
            "decision": self.decision,
            "submitted_at": iso_time(self.submitted_at),
            "started_at": iso_time(self.started_at),
            "ended_at": iso_time(self.ended_at),
            "progress": pace_to_dict(self.pace) if self.pace is not None else None,
            "scene": self.scene.to_dict() if self.scene is not None else None,
            "vocabulary": words_for(self.state, self.stage).to_dict(),
        }


@dataclass(frozen=True, slots=True)
class StatusReport:
    """``slurm_error`` says why Slurm could not be asked, "" if it could: then the rows are what the journals know."""

    rows: tuple[RunStatus, ...]
    slurm_error: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """What Slurm says about one run's job. ``asked`` is False where nothing is known."""

    record: JobRecord | None = None
    asked: bool = False


def iso_time(at: float | None) -> str | None:
    """``2026-11-29T16:45:12Z``; None for a time that is not known."""
    if at is None:
        return None
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def read_views(runs: Sequence[RunDir]) -> list[RunView]:
    """All runs, in the order given."""
    if len(runs) < 2 * _READERS:
        return [read_view(run) for run in runs]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read_view, runs))


def read_status(runs: Sequence[RunDir], slurm: SlurmClient | None, now: float) -> StatusReport:
    """The rows of these runs, newest submission last. One query to Slurm, none where all runs have ended."""
    views = read_views(runs)
    sights, problem = see_jobs(views, slurm)
    rows = [build_status(view, sights.get(view.run.run_id, Sight()), now) for view in views]
    rows.sort(key=lambda row: (row.submitted_at or 0.0, row.run_id))
    return StatusReport(tuple(rows), problem)


def see_jobs(views: Iterable[RunView], slurm: SlurmClient | None) -> tuple[dict[str, Sight], str]:
    """What Slurm says about the jobs of runs that have not ended, by run id; and why it could not be asked, if so."""
    wanted: dict[str, JobId] = {}
    for view in views:
        if not view.state.ended and view.state.state is not RunState.HELD:
            try:
                wanted[view.run.run_id] = parse_job_id(view.job_id)
            except ValueError:
                continue
    if slurm is None or not wanted:
        return {}, ""
    try:
        jobs = slurm.observe(set(wanted.values())).jobs
    except SlurmtrainError as exc:
        return {}, str(exc)
    return {run_id: Sight(jobs.get(job_id), asked=True) for run_id, job_id in wanted.items()}, ""


def build_status(view: RunView, sight: Sight, now: float) -> RunStatus:
    """One row from one run's journal and what Slurm says about its job."""
    state = join_slurm(view.state, sight.record, now)
    attempt = state.last_attempt
    launch = attempt.launches[-1] if attempt and attempt.launches else None
    has_nodes = state.state in {RunState.STARTING, RunState.RUNNING}
    nodes = _nodes(attempt, sight.record) if has_nodes or state.ended else ()
    reported = len(read_nodes(view.run, attempt.number)) if attempt and has_nodes else 0
    shown, stage = _stage(view, state, len(nodes), reported, now)
    waiting = _waiting(state, sight.record)
    decision = state.last_decision
    return RunStatus(
        run_id=view.run.run_id,
        name=view.name,
        state=shown,
        stage=stage,
        job_id=view.job_id or None,
        attempt=attempt.number if attempt else None,
        launch=launch.number if launch else None,
        nodes=nodes,
        nodes_reported=min(reported, len(nodes)),
        reason=_reason(view, state, sight, waiting),
        waiting=waiting,
        cause=_cause(view, state, sight),
        decision=decision.action.value if decision else None,
        submitted_at=_submitted_at(view),
        started_at=entered(view, RunState.STARTING, RunState.RUNNING),
        ended_at=ended_at(view),
        damage=view.damage,
        pace=read_run_pace(view.run, state) if state.state is RunState.RUNNING else None,
        scene=find_scene(view.run, state),
    )


def join_slurm(state: Run, record: JobRecord | None, now: float) -> Run:
    """The run with what Slurm says now, where the journal does not know better."""
    if record is None or state.ended or state.state is RunState.HELD:
        return state
    if is_running(record.state):
        if _is_execution(state.last_attempt, record):
            return state  # it trains, or it was decided and is about to leave: the journal says which
        if state.attempts:  # a new execution, whose gate has written nothing yet
            return dataclasses.replace(state, state=RunState.STARTING)
    if is_cancelled(record):
        return dataclasses.replace(state, state=RunState.STOPPED)  # nobody will undo it, written down or not
    return advance(state, build_job_seen(record, at=now, who="squeue"))


def is_cancelled(record: JobRecord | None) -> bool:
    """Whether Slurm says that the job was cancelled and is over: that stays, whoever writes it down later."""
    return record is not None and record.state.base is BaseState.CANCELLED and not record.state.flags


def _is_execution(attempt: Attempt | None, record: JobRecord) -> bool:
    started = attempt.started if attempt else None
    return started is not None and (started.job_id, started.restart_count) == (
        str(record.job_id),
        record.restart_count,
    )


def _nodes(attempt: Attempt | None, record: JobRecord | None) -> tuple[str, ...]:
    expression = (
        record.nodes if record and record.nodes else attempt.started.nodes if attempt and attempt.started else ""
    )
    try:
        return tuple(expand_nodes(str(expression)))
    except ValueError:
        return ()


def _stage(view: RunView, state: Run, expected: int, reported: int, now: float) -> tuple[RunState, Stage | None]:
    if state.last_attempt is not None and state.last_attempt.stage:
        if state.state is RunState.STARTING and state.last_attempt.stage == "stage_in":
            return state.state, Stage.STAGE_IN
        if state.state is RunState.RUNNING and state.last_attempt.stage == "stage_out":
            return state.state, Stage.STAGE_OUT
    if state.state is not RunState.RUNNING:
        return state.state, normal_stage(state.state, None)
    launch = state.last_launch
    if launch is None:
        return state.state, Stage.TRAINING
    if launch.ended is not None:
        restarts = launch.decision is not None and launch.decision.action is Action.RESTART_IN_PLACE
        return state.state, Stage.RESTARTING if restarts else Stage.TRAINING
    if launch.stop is not None:
        return state.state, Stage.STOPPING
    started = as_time(launch.started.at) if launch.started else None
    young = started is not None and now - started < _REPORT_WITHIN_S
    if launch.number == 0 and young and reported < expected and _has_companions(view.run):
        return RunState.STARTING, Stage.STARTING
    return state.state, Stage.TRAINING


def _has_companions(run: RunDir) -> bool:
    plan = find_plan(run)
    return plan is not None and plan.spec.companion


def _waiting(state: Run, record: JobRecord | None) -> Waiting | None:
    if record is None or state.state is not RunState.INQUEUE or not is_waiting(record.state):
        return None
    return explain_waiting(record.reason)


def _is_newly_cancelled(view: RunView, sight: Sight) -> bool:
    """By Slurm's word alone: nobody has written it down yet."""
    return is_cancelled(sight.record) and not view.state.ended


def _cause(view: RunView, state: Run, sight: Sight) -> str | None:
    decision = state.last_decision
    if _is_newly_cancelled(view, sight):
        return "user_cancelled"
    return decision.cause if decision and decision.cause != "no_failure" else None


def _reason(view: RunView, state: Run, sight: Sight, waiting: Waiting | None) -> str:
    decision = state.last_decision
    if sight.record is not None and _is_newly_cancelled(view, sight):
        return f"job {sight.record.job_id} was cancelled"
    if state.ended or state.state is RunState.HELD:
        asked = requested_stop(view) if state.state is RunState.STOPPED else None
        if asked is not None and asked.who == "user":
            return f"stopped by {asked.by}" + (f": {asked.reason}" if asked.reason else "")
        return decision.reason if decision else str(state.history[-1].why) if state.history else ""
    if waiting is not None and sight.record is not None:
        words = _waiting_sentence(waiting, sight.record, view.run.run_id)
        return f"{decision.reason}; {words}" if decision and decision.waits_for and _delayed(waiting) else words
    if sight.record is not None and (words := _odd_state(state, sight.record)):
        return words
    if sight.asked and sight.record is None:
        return _unseen(view, state)
    if state.uncertain:
        return state.uncertain
    return _busy(view, state)


def _delayed(waiting: Waiting) -> bool:
    return waiting.reason.startswith("BeginTime")


def _waiting_sentence(waiting: Waiting, record: JobRecord, run_id: str) -> str:
    parts = [waiting.sentence]
    if waiting.reason.startswith("BeginTime") and record.begin_time is not None:
        parts.append(f"it may start at {record.begin_time.astimezone():%H:%M:%S on %d %b}")
    elif record.start_time is not None and waiting.helps:
        parts.append(f"Slurm expects to start it at {record.start_time.astimezone():%H:%M on %d %b}")
    if record.priority and waiting.reason.startswith(("Priority", "Resources")):
        parts.append(f"priority {record.priority}")
    if waiting.helps is not True:
        parts.append(waiting.verdict)
    if waiting.remedy:
        parts.append(waiting.remedy.replace("JOB", str(record.job_id)).replace("RUN", run_id))
    return "; ".join(parts)


def _odd_state(state: Run, record: JobRecord) -> str:
    """Slurm's word where it is news beside the run's own state."""
    if is_terminal(record.state, requeue=record.requeue):
        return f"job {record.job_id} ended {record.state}; nobody has decided about it yet: {WATCH_ONCE}"
    if StateFlag.COMPLETING in record.state.flags:
        return f"Slurm cleans up after job {record.job_id}"
    if record.preempt_time is not None:
        return "Slurm is about to give its nodes to another job"
    if record.state.base is BaseState.SUSPENDED:
        return f"job {record.job_id} is suspended"
    return ""


def _unseen(view: RunView, state: Run) -> str:
    created = state.created
    if created is not None and os.geteuid() not in {0, created.uid}:
        return f"the run belongs to {created.user}, whose jobs Slurm shows to nobody else here"
    return f"Slurm no longer knows job {view.job_id}; nobody has decided about it yet: {WATCH_ONCE}"


def _busy(view: RunView, state: Run) -> str:
    launch = state.last_launch
    if state.stop_requested is not None:
        return "asked to stop: it saves and leaves"
    if state.state is RunState.RUNNING and launch is not None and launch.stop is not None and launch.ended is None:
        return f"asked to save and leave: {launch.stop.detail or launch.stop.reason}"
    if state.state is RunState.RUNNING and launch is not None and launch.noticed and launch.ended is None:
        return "; ".join(str(notice.detail) for notice in launch.noticed[-3:])
    if state.state in {RunState.PENDING, RunState.PREEMPTED} and state.last_decision is not None:
        return state.last_decision.reason
    if state.state is RunState.PENDING and not view.job_id:
        return (
            "not handed to Slurm yet; where `slurmtrain submit` does not run any more, `slurmtrain watch --once` ends "
            f"the run {NEVER_SUBMITTED_S / 60:.0f} min after it began"
        )
    return ""


def _submitted_at(view: RunView) -> float | None:
    first = next((event.at for event in view.events if event.kind == "submitted"), None)
    created = view.state.created
    return as_time(first) or (as_time(created.at) if created else None)
