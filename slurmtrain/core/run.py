"""A run's state: the fold over its journal. ``explain``, the agent and a restarted watcher replay the same code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from slurmtrain.core import events as ev
from slurmtrain.core.decision import ENDED_STATES, Action, Decision, RunState, decision_from_dict
from slurmtrain.core.jobstate import is_running, is_waiting, parse_job_state


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of the run's state: when, to what, by whom and why."""

    at: float
    state: RunState
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of the training processes."""

    number: int
    started: ev.LaunchStarted | None = None
    stop: ev.StopSent | None = None
    noticed: tuple[ev.LaunchNoticed, ...] = ()  # what still holds
    scene: ev.SceneTaken | None = None  # the newest one
    ended: ev.LaunchEnded | None = None
    diagnosis: Mapping[str, Any] | None = None
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One Slurm execution of the run."""

    number: int
    started: ev.AttemptStarted | None = None
    launches: tuple[Launch, ...] = ()
    ended: ev.AttemptEnded | None = None
    diagnosis: Mapping[str, Any] | None = None
    decision: Decision | None = None
    decided_by: str = ""
    stage: str = ""  # stage_in or stage_out while it runs
    decided_at: float = 0.0
    acted: tuple[ev.Acted, ...] = ()
    came_back: ev.CameBack | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that is known of a run."""

    created: ev.RunCreated | None = None
    state: RunState = RunState.PENDING
    job_id: str = ""
    submissions: Mapping[int, str] = dataclasses.field(default_factory=dict)
    uncertain: str = ""  # a submission whose reply was lost, in words
    attempts: tuple[Attempt, ...] = ()
    job: ev.JobSeen | None = None
    stop_requested: ev.StopRequested | None = None
    history: tuple[Transition, ...] = ()
    restarted_as: tuple[str, ...] = ()  # runs that a person made of this one

    @property
    def ended(self) -> bool:
        return self.state in ENDED_STATES

    @property
    def last_attempt(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def last_launch(self) -> Launch | None:
        launches = [launch for attempt in self.attempts for launch in attempt.launches]
        return launches[-1] if launches else None

    @property
    def last_decision(self) -> Decision | None:
        made = [d for attempt in self.attempts for d in (*(x.decision for x in attempt.launches), attempt.decision)]
        return next((d for d in reversed(made) if d is not None), None)

    @property
    def last_diagnosis(self) -> Mapping[str, Any] | None:
        made = [d for attempt in self.attempts for d in (*(x.diagnosis for x in attempt.launches), attempt.diagnosis)]
        return next((d for d in reversed(made) if d is not None), None)


def fold(events: Iterable[ev.Event]) -> Run:
    """The run that these events, in journal order, make."""
    return reduce(advance, events, Run())


def advance(run: Run, event: ev.Event) -> Run:
    """The run after one more event. An event of a kind without effect leaves it as it is."""
    step = _STEPS.get(type(event))
    return run if step is None else step(run, event)


def _to(run: Run, state: RunState, event: ev.Event, why: str) -> Run:
    if (run.state is state and run.history) or run.ended:
        return run  # an end is the last state: somebody who stood still meanwhile writes down later what it had decided
    change = Transition(event.at, state, event.who, why)
    return dataclasses.replace(run, state=state, history=(*run.history, change))


def _with_attempt(run: Run, number: int, **changes: Any) -> Run:
    if number < 0:
        return run
    attempts = list(run.attempts)
    position = _position(run.attempts, number)
    if position is None:
        position = sum(attempt.number < number for attempt in attempts)
        attempts.insert(position, Attempt(number))
    attempts[position] = dataclasses.replace(attempts[position], **changes)
    return dataclasses.replace(run, attempts=tuple(attempts))


def _position(attempts: Sequence[Attempt], number: int) -> int | None:
    """Where the attempt is; the newest are looked at first, as nearly all events are of them."""
    for position in reversed(range(len(attempts))):
        if attempts[position].number == number:
            return position
    return None


def find_attempt(run: Run, number: int) -> Attempt | None:
    """The attempt with this number, if the run has it."""
    position = _position(run.attempts, number)
    return None if position is None else run.attempts[position]


def _with_launch(run: Run, event: ev.Event, **changes: Any) -> Run:
    attempt = find_attempt(run, event.attempt) or Attempt(event.attempt)
    launches = {launch.number: launch for launch in attempt.launches}
    launch = launches.get(event.launch, Launch(event.launch))
    launches[event.launch] = dataclasses.replace(launch, **changes)
    return _with_attempt(run, event.attempt, launches=tuple(launches[n] for n in sorted(launches)))


def _created(run: Run, event: ev.RunCreated) -> Run:
    return _to(dataclasses.replace(run, created=event), RunState.PENDING, event, "accepted")


def _submitted(run: Run, event: ev.Submitted) -> Run:
    submissions = {**run.submissions, event.submission: event.job_id}
    changed = dataclasses.replace(run, job_id=event.job_id, submissions=submissions, uncertain="")
    return _to(changed, RunState.INQUEUE, event, f"Slurm accepted job {event.job_id}")


def _uncertain(run: Run, event: ev.SubmissionUncertain) -> Run:
    return dataclasses.replace(run, uncertain=event.message)


def _job_seen(run: Run, event: ev.JobSeen) -> Run:
    changed = dataclasses.replace(run, job=event, job_id=event.job_id)
    if run.ended or run.state is RunState.HELD:
        return changed
    state = parse_job_state(event.state)
    if is_waiting(state) and not _has_started_since(run, event):
        return _to(changed, RunState.INQUEUE, event, event.reason or "in Slurm's queue")
    if is_running(state) and run.state in {RunState.INQUEUE, RunState.PENDING, RunState.PREEMPTED}:
        return _to(changed, RunState.STARTING, event, f"allocated {event.nodes}")
    return changed


def _has_started_since(run: Run, seen: ev.JobSeen) -> bool:
    """Whether the execution that was seen waiting has begun before that was written down."""
    started = (attempt.started for attempt in run.attempts if attempt.decision is None)
    return any(s and s.job_id == seen.job_id and s.restart_count >= seen.restart_count for s in started)


def _attempt_started(run: Run, event: ev.AttemptStarted) -> Run:
    known = find_attempt(run, event.attempt)
    if known is not None and known.started is not None:
        return run  # somebody wrote it down once more, who had read the journal before
    changed = _with_attempt(dataclasses.replace(run, job_id=event.job_id), event.attempt, started=event)
    if event.who == "watcher" or (known is not None and known.decision is not None):
        return changed  # a watcher notes an execution that is over
    return _to(changed, RunState.STARTING, event, f"attempt {event.attempt} on {event.nodes}")


def _stage_started(run: Run, event: ev.StageStarted) -> Run:
    changed = _with_attempt(run, event.attempt, stage=event.stage)
    if event.stage == "stage_in":
        return changed
    return _to(changed, RunState.RUNNING, event, f"{event.stage} of attempt {event.attempt}")


def _stage_ended(run: Run, event: ev.StageEnded) -> Run:
    return _with_attempt(run, event.attempt, stage="")


def _launch_started(run: Run, event: ev.LaunchStarted) -> Run:
    known = find_attempt(run, event.attempt)
    changed = _with_launch(run, event, started=event)
    if known is not None and known.decision is not None:
        return changed  # sorted behind the decision about its attempt, whose writer could not read the journal
    return _to(changed, RunState.RUNNING, event, f"launch {event.launch} of attempt {event.attempt}")


def _stop_sent(run: Run, event: ev.StopSent) -> Run:
    return _with_launch(run, event, stop=event)


def _launch_noticed(run: Run, event: ev.LaunchNoticed) -> Run:
    attempt = find_attempt(run, event.attempt)
    launch = next((x for x in attempt.launches if x.number == event.launch), None) if attempt else None
    others = [n for n in (launch.noticed if launch else ()) if (n.what, n.rank) != (event.what, event.rank)]
    return _with_launch(run, event, noticed=tuple(others if event.over else [*others, event]))


def _scene_taken(run: Run, event: ev.SceneTaken) -> Run:
    return _with_launch(run, event, scene=event)


def _launch_ended(run: Run, event: ev.LaunchEnded) -> Run:
    return _with_launch(run, event, ended=event)


def _diagnosed(run: Run, event: ev.Diagnosed) -> Run:
    if event.launch >= 0:
        return _with_launch(run, event, diagnosis=event.diagnosis)
    return _with_attempt(run, event.attempt, diagnosis=event.diagnosis)


def _decided(run: Run, event: ev.Decided) -> Run:
    try:
        decision = decision_from_dict(event.decision)
    except ValueError:
        return run
    if decision.action is Action.RESTART_IN_PLACE:
        return _with_launch(run, event, decision=decision)
    known = find_attempt(run, event.attempt)
    if known is not None and known.decision == decision and not event.again and decision.state not in ENDED_STATES:
        return run  # written down once more, by somebody who stood still meanwhile: the run has gone on since
    changed = _with_attempt(run, event.attempt, decision=decision, decided_by=event.who, decided_at=event.at)
    return _to(changed, decision.state, event, decision.reason)


def _acted(run: Run, event: ev.Acted) -> Run:
    attempt = find_attempt(run, event.attempt)
    return _with_attempt(run, event.attempt, acted=(*(attempt.acted if attempt else ()), event))


def _came_back(run: Run, event: ev.CameBack) -> Run:
    return _with_attempt(run, event.attempt, came_back=event)


def _attempt_ended(run: Run, event: ev.AttemptEnded) -> Run:
    return _with_attempt(run, event.attempt, ended=event)


def _stop_requested(run: Run, event: ev.StopRequested) -> Run:
    return dataclasses.replace(run, stop_requested=event)


def _released(run: Run, event: ev.Released) -> Run:
    return _to(run, RunState.PENDING, event, f"released by {event.by}")


def _restarted(run: Run, event: ev.Restarted) -> Run:
    return dataclasses.replace(run, restarted_as=(*run.restarted_as, event.as_run))


_STEPS: Mapping[type[ev.Event], Callable[[Run, Any], Run]] = {
    ev.RunCreated: _created,
    ev.Submitted: _submitted,
    ev.SubmissionUncertain: _uncertain,
    ev.JobSeen: _job_seen,
    ev.AttemptStarted: _attempt_started,
    ev.StageStarted: _stage_started,
    ev.StageEnded: _stage_ended,
    ev.LaunchStarted: _launch_started,
    ev.StopSent: _stop_sent,
    ev.LaunchNoticed: _launch_noticed,
    ev.SceneTaken: _scene_taken,
    ev.LaunchEnded: _launch_ended,
    ev.Diagnosed: _diagnosed,
    ev.Decided: _decided,
    ev.Acted: _acted,
    ev.CameBack: _came_back,
    ev.AttemptEnded: _attempt_ended,
    ev.StopRequested: _stop_requested,
    ev.Released: _released,
    ev.Restarted: _restarted,
}
