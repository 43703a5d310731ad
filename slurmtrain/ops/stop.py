"""Stopping a run because a person wants it: the stop file first, then whatever its job needs.

The file is what counts: the agent sees it within seconds and the gate lets no later attempt in. A job that waits is
cancelled at once; one that runs is asked to save and leave, and its agent decides STOP. All of it may be repeated.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum

from slurmtrain.core.decision import ENDED_STATES, Action, Decision, RunState, decision_from_dict
from slurmtrain.core.events import StopRequested
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import StateFlag, is_terminal, is_waiting
from slurmtrain.core.spec import Spec, warning_lead_s
from slurmtrain.errors import SlurmUnavailableError
from slurmtrain.ops.decided import build_decided, publish_decision
from slurmtrain.ops.status import Sight
from slurmtrain.ops.timeline import RunView, find_plan, read_view, requested_stop
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.inbox import drop
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import publish_once
from slurmtrain.store.rundir import RunDir


class Way(Enum):
    """What stopping a run takes."""

    NOTHING = "it has ended"
    NO_JOB = "nothing of it is in Slurm's queue"
    CANCEL = "its job waits: it is cancelled"
    ASK = "it runs: it is asked to save and leave"
    KILL = "it runs: its job is cancelled at once"
    UNKNOWN = "Slurm does not answer"


@dataclass(frozen=True, slots=True)
class Wish:
    """Who wants a stop and why. ``at_once`` gives the training no time to save."""

    by: str
    reason: str = ""
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """What was done, in a sentence. ``settled`` is True where the run has ended now."""

    run_id: str
    way: Way
    sentence: str
    settled: bool


def choose_way(view: RunView, sight: Sight, wish: Wish) -> Way:
    """What stopping takes, from the journal and what Slurm says now."""
    if view.state.ended:
        return Way.NOTHING
    if view.state.state is RunState.HELD:
        return Way.NO_JOB
    record = sight.record
    if record is None:
        known = _job_of(view) is not None
        return Way.UNKNOWN if known and not sight.asked else Way.NO_JOB
    if is_terminal(record.state, requeue=record.requeue):
        return Way.NO_JOB
    if is_waiting(record.state) or StateFlag.COMPLETING in record.state.flags:
        return Way.CANCEL
    return Way.KILL if wish.at_once else Way.ASK


def stop_run(view: RunView, sight: Sight, slurm: SlurmClient, wish: Wish) -> Stopped:
    """Stop one run. Raises ``StoreError``, ``SlurmRefusedError`` (somebody else's job), ``SlurmUnavailableError``.

    After the last one the request stands: the run stops as soon as its job looks at the file.
    """
    run, way = view.run, choose_way(view, sight, wish)
    if way is Way.NOTHING:
        return Stopped(run.run_id, way, f"{run.run_id} has ended already: {view.state.state.value}", settled=True)
    _write_stop_file(run, wish)
    journal = JournalWriter(run.journal, f"stop-{socket.gethostname()}-{os.getpid()}")
    asked = requested_stop(view)
    if asked is None or asked.who != "user":
        journal.append(
            StopRequested(at=time.time(), who="user", attempt=view.last_attempt_number, by=wish.by, reason=wish.reason),
            sync=True,
        )
    drop(run, "stop")
    if way is Way.UNKNOWN:
        raise SlurmUnavailableError(
            f"Slurm does not answer, so the job of {run.run_id} was not cancelled; the request is written down and the "
            "run stops when its job next looks. Call stop again when Slurm is back"
        )
    job_id = _job_of(view)
    if way in {Way.CANCEL, Way.KILL} and job_id is not None:
        slurm.cancel(job_id)
    if way is Way.ASK:
        return Stopped(run.run_id, way, _asked(view), settled=False)
    state = _settle(run, wish, journal)
    drop(run, "stop")
    done = f"job {job_id} is cancelled" if way in {Way.CANCEL, Way.KILL} else way.value
    return Stopped(run.run_id, way, f"{run.run_id}: {state.value}; {done}", settled=True)


def announce_stop(views: Iterable[RunView], wish: Wish) -> None:
    """Write the request down for all runs before the first is stopped: of an array, a task whose turn comes meanwhile
    must not begin to train. Raises ``StoreError``."""
    for view in views:
        if not view.state.ended:
            _write_stop_file(view.run, wish)


def describe_plan(view: RunView, way: Way) -> str:
    """What ``stop_run`` would do."""
    job = f" (job {view.job_id})" if view.job_id and way not in {Way.NOTHING, Way.NO_JOB} else ""
    return f"{view.run.run_id} is {view.state.state.value}: {way.value}{job}"


def _job_of(view: RunView) -> JobId | None:
    try:
        return parse_job_id(view.job_id)
    except ValueError:
        return None


def _write_stop_file(run: RunDir, wish: Wish) -> None:
    """Who, when, why; the first request stays."""
    why = f": {wish.reason}" if wish.reason else ""
    text = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ} {wish.by}{why}\n"
    publish_once(run.stop_file, text.encode("utf-8", "replace"))


def _asked(view: RunView) -> str:
    """As ``agent.stops`` does it: the time to save, TERM, KILL; a save that goes on then gets the grace before TERM."""
    plan, run_id = find_plan(view.run), view.run.run_id
    spec = plan.spec if plan is not None else Spec(command=("?",))
    seconds, grace = max(warning_lead_s(spec), spec.stop.grace_s), spec.stop.grace_s
    return (
        f"{run_id} is asked to save and stop, and leaves once it has saved. If it does not listen, it gets TERM after "
        f"{seconds} s and KILL {grace} s later: it is gone in about {seconds + grace} s "
        f"(`slurmtrain wait {run_id}` waits for it; `slurmtrain stop --now` does not)"
    )


def _settle(run: RunDir, wish: Wish, journal: JournalWriter) -> RunState:
    """Write STOP down for the newest attempt, unless it was decided that the run ends otherwise; where it stands."""
    why = f": {wish.reason}" if wish.reason else ""
    decision = Decision(Action.STOP, RunState.STOPPED, "user_cancelled", f"{wish.by} stopped the run{why}")
    attempts = run.read_attempts()
    if attempts and not publish_decision(attempts[-1], decision, "user"):
        before = _read_end(attempts[-1].read_decision())
        if before is not None:
            return before
    now = read_view(run)
    if now.state.ended:
        return now.state.state
    journal.catch_up()
    journal.append(build_decided(now.last_attempt_number, decision, "user"), sync=True)
    return RunState.STOPPED


def _read_end(record: dict[str, object] | None) -> RunState | None:
    """The state in which an earlier decision ended the run; None where it was to go on."""
    try:
        state = decision_from_dict(record or {}).state
    except ValueError:
        return None
    return state if state in ENDED_STATES else None
