"""A run as a reader finds it: whatever its journal and directory still tell, and the events in words.

Reading never fails: what is missing, torn or nonsense is left out and named in ``RunView.damage``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from slurmtrain.core import events as ev
from slurmtrain.core.decision import RunState
from slurmtrain.core.run import Run, advance
from slurmtrain.errors import SlurmtrainError
from slurmtrain.store.journal import count_events, read_what_can_be_read
from slurmtrain.store.publish import read_json
from slurmtrain.store.rundir import Plan, RunDir

BAD_VALUES = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError)
# What the annotations of ``core.events`` mean; JSON can hold anything in their place.
_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
    "Mapping[str, Any]": (Mapping,),
    "tuple[Mapping[str, Any], ...]": (tuple,),
}
_FIELDS: Mapping[str, tuple[tuple[str, tuple[type, ...]], ...]] = {
    name: tuple((item.name, _TYPES[str(item.type)]) for item in fields(kind)) for name, kind in ev.KINDS.items()
}


@dataclass(frozen=True, slots=True)
class RunView:
    """One look at a run. ``events`` are those that could be read, in the journal's order."""

    run: RunDir
    state: Run
    events: tuple[ev.Event, ...] = ()
    damage: tuple[str, ...] = ()
    submissions: Mapping[int, str] = field(default_factory=dict)  # read from the directory where the journal is empty

    @property
    def job_id(self) -> str:
        """The newest job; "" where none is known."""
        if self.state.job_id and isinstance(self.state.job_id, str):
            return self.state.job_id
        return self.submissions[max(self.submissions)] if self.submissions else ""

    @property
    def name(self) -> str:
        created = self.state.created
        return str(created.name)[:100] if created is not None else self.run.run_id

    @property
    def last_attempt_number(self) -> int:
        """-1 before the first attempt: where an event of a person's belongs, so that it sorts behind what is known."""
        return self.state.attempts[-1].number if self.state.attempts else -1


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a run's story."""

    at: float | None
    attempt: int
    launch: int
    who: str
    what: str

    def to_dict(self) -> dict[str, Any]:
        number = {"attempt": self.attempt, "launch": self.launch}
        numbers = {key: None if value < 0 else value for key, value in number.items()}
        return {"at": self.at, **numbers, "who": self.who, "what": self.what}


def read_view(run: RunDir) -> RunView:
    """Everything that can still be read of a run; never raises."""
    written, damage = read_what_can_be_read(run.journal)
    state, events = fold_readable(written)
    if skipped := len(written) - len(events):
        damage.append(f"{skipped} of {len(written)} events in {run.journal} make no sense and were passed over")
    submissions: Mapping[int, str] = {}
    if not state.job_id:
        try:
            submissions = run.read_submissions()
        except SlurmtrainError as exc:
            damage.append(str(exc))
    return RunView(run, state, tuple(events), tuple(damage), submissions)


def fold_readable(events: Iterable[ev.Event]) -> tuple[Run, list[ev.Event]]:
    """The fold over the events that make sense, and these events."""
    state, taken = Run(), []
    for event in events:
        try:
            if not _makes_sense(event):
                continue
            state = advance(state, event)
        except BAD_VALUES:
            continue
        taken.append(event)
    return state, taken


def _makes_sense(event: ev.Event) -> bool:
    """Whether every field has a value of its type."""
    for name, types in _FIELDS.get(event.kind, ()):
        value = getattr(event, name)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return False
    return True


def look_for_damage(view: RunView) -> list[str]:
    """What else is wrong with the directory; a closer and slower look than ``read_view`` takes."""
    found = list(view.damage)
    if not view.events:
        found.append(f"the journal {view.run.journal} has no readable events")
    elif (torn := _count_torn_lines(view.run)) > 0:
        found.append(f"{torn} lines of the journal are torn or unreadable and were passed over")
    if view.events and view.state.created is None:
        found.append("the journal does not say who made the run, nor when")
    try:
        view.run.read_plan()
    except (SlurmtrainError, *BAD_VALUES) as exc:
        found.append(str(exc) if isinstance(exc, SlurmtrainError) else f"{view.run.plan} makes no sense: {exc}")
    if view.run.pruned_file.is_file():
        return found  # what is missing was deleted on purpose
    if not view.run.batch_script.is_file():
        found.append(f"the batch script {view.run.batch_script} is missing")
    return found


def find_plan(run: RunDir) -> Plan | None:
    """The run's plan, or None where it cannot be read."""
    try:
        return run.read_plan()
    except (SlurmtrainError, *BAD_VALUES):
        return None


def _count_torn_lines(run: RunDir) -> int:
    """Lines that are no events. A newline at the end of each file closes the last line."""
    lines = 0
    try:
        for path in run.journal.glob("*.jsonl"):
            with path.open("rb") as stream:
                lines += sum(1 for line in stream if line.strip())
        return lines - count_events(run.journal)
    except (OSError, SlurmtrainError):
        return 0


def read_nodes(run: RunDir, attempt: int) -> dict[str, dict[str, Any]]:
    """What the companions of an attempt reported, by node; empty where there are none."""
    found: dict[str, dict[str, Any]] = {}
    try:
        for path in run.attempt(attempt).nodes.glob("*.json"):
            record = read_json(path)
            if record is not None:
                found[path.stem] = record
    except (OSError, SlurmtrainError):
        return found
    return found


def as_time(value: object) -> float | None:
    """A time of the journal, or None where what stands there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and 0 < value < 1e11 else None


def requested_stop(view: RunView) -> ev.StopRequested | None:
    """Who asked for the stop first: the agent repeats the request without a name when it sees the file."""
    asked = [event for event in view.events if isinstance(event, ev.StopRequested)]
    return next((event for event in asked if event.who == "user"), asked[0] if asked else None)


def build_timeline(view: RunView) -> list[Entry]:
    """Every event in words, oldest first as the journal orders them."""
    entries = []
    for event in view.events:
        try:
            what = describe(event)
        except BAD_VALUES:
            what = f"{event.kind}: (unreadable)"
        entries.append(Entry(as_time(event.at), event.attempt, event.launch, str(event.who), what))
    return entries


def describe(event: ev.Event) -> str:
    """An event in words. Raises one of ``BAD_VALUES`` where it makes no sense."""
    words = _WORDS.get(type(event))
    return words(event) if words is not None else event.kind.replace("_", " ")


def _with_reason(text: str, reason: object) -> str:
    return f"{text} ({reason})" if reason else text


def _launch_started(event: ev.LaunchStarted) -> str:
    resumes = f", resumes from {str(event.resume_from).rpartition('/')[2]}" if event.resume_from else ""
    return f"launch {event.launch} started{resumes}"


def _launch_ended(event: ev.LaunchEnded) -> str:
    asked = f" after a request to stop ({event.stop_reason})" if event.stop_reason else ""
    done = ", training says it has finished" if event.done else ""
    saved = f"; {event.saved}" if event.saved else ""
    ended = f"launch {event.launch} ended with exit code {event.exit_code} after {event.duration_s:.0f} s"
    return f"{ended}{asked}{done}{saved}"


def _diagnosed(event: ev.Diagnosed) -> str:
    found = event.diagnosis
    where = [f"rank {found['rank']}"] if found.get("rank") is not None else []
    where += [f"node {found['node']}"] if found.get("node") else []
    return _with_reason(f"found: {found.get('cause', 'unknown')}", ", ".join(where))


def _stage_ended(event: ev.StageEnded) -> str:
    asked = f" after {event.stop_reason}" if event.stop_reason else ""
    return _with_reason(f"{event.stage} ended with exit code {event.exit_code}{asked}", event.sentence)


def _decided(event: ev.Decided) -> str:
    words = str(event.decision.get("action", "?")).replace("_", " ")
    return _with_reason(f"decided: {words}", event.decision.get("reason"))


def _store_trouble(event: ev.StoreTrouble) -> str:
    late = max(0.0, event.until - event.at)
    return f"{event.problem}; for {late:.0f} s nothing could be written down" if late >= 1 else event.problem


def _acted(event: ev.Acted) -> str:
    return event.detail or f"{event.action}: {'done' if event.accepted else 'not possible'}"


_WORDS: Mapping[type[ev.Event], Callable[[Any], str]] = {
    ev.RunCreated: lambda e: f"run made by {e.user} on {e.host}",
    ev.Submitted: lambda e: f"Slurm accepted job {e.job_id}",
    ev.SubmissionUncertain: lambda e: f"submission uncertain: {e.message}",
    ev.JobSeen: lambda e: _with_reason(f"Slurm says job {e.job_id} is {e.state}", e.reason),
    ev.AttemptStarted: lambda e: f"attempt {e.attempt} in job {e.job_id} on {e.nodes or 'no node'}",
    ev.StageStarted: lambda e: f"{e.stage} begins" + (f", try {e.tries}" if e.tries > 1 else ""),
    ev.StageEnded: _stage_ended,
    ev.LaunchStarted: _launch_started,
    ev.CheckpointSetAside: lambda e: _with_reason(f"set aside as {'/'.join(e.path.rsplit('/', 2)[-2:])}", e.why),
    ev.StopSent: lambda e: f"asked to save and leave: {e.reason}" + (f" ({e.detail})" if e.detail else ""),
    ev.NodeNoticed: lambda e: e.detail,
    ev.LaunchNoticed: lambda e: e.detail,
    ev.SceneTaken: lambda e: _with_reason(f"the scene was kept of {e.nodes} of {e.of} nodes in {e.path}", e.detail),
    ev.LaunchEnded: _launch_ended,
    ev.Diagnosed: _diagnosed,
    ev.Decided: _decided,
    ev.Acted: _acted,
    ev.AttemptEnded: lambda e: _with_reason(f"Slurm says the execution ended {e.state}", e.reason),
    ev.StopRequested: lambda e: _with_reason(f"stop asked for by {e.by}", e.reason),
    ev.StoreTrouble: _store_trouble,
    ev.Released: lambda e: f"released by {e.by}",
    ev.Restarted: lambda e: f"restarted as run {e.as_run}",
    ev.CameBack: lambda e: f"back after {e.waited_s:.0f} s; Slurm's clean-up took {e.clean_up_s:.0f} s",
}


def ended_at(view: RunView) -> float | None:
    """When the run came to where it ended; None while it has not."""
    history = view.state.history
    return as_time(history[-1].at) if view.state.ended and history else None


def entered(view: RunView, *states: RunState) -> float | None:
    """When the run first came to one of these states."""
    return next((as_time(change.at) for change in view.state.history if change.state in states), None)
