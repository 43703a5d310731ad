"""What happens to a run, as values. A run's state is the fold over its events (``core.run``); nothing else changes it.

Times are seconds since the epoch by the writer's clock: for people, never for ordering. ``attempt`` and ``launch`` are
-1 where an event belongs to none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. ``who`` wrote it: ``agent``, ``gate``, ``watcher``, ``user``…"""

    kind: ClassVar[str] = ""
    at: float
    who: str
    attempt: int = -1
    launch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreated(Event):
    """A person asked for a run; its directory exists."""

    kind: ClassVar[str] = "run_created"
    name: str
    user: str
    uid: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted(Event):
    """Slurm accepted a job of this run."""

    kind: ClassVar[str] = "submitted"
    submission: int
    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionUncertain(Event):
    """The reply was lost: a job of this submission may exist or not. Its gate makes either harmless."""

    kind: ClassVar[str] = "submission_uncertain"
    submission: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen(Event):
    """What Slurm says of the run's job; written when it changed."""

    kind: ClassVar[str] = "job_seen"
    job_id: str
    restart_count: int
    state: str
    reason: str = ""
    nodes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """The gate let an execution of the job in."""

    kind: ClassVar[str] = "attempt_started"
    job_id: str
    restart_count: int
    host: str
    nodes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStarted(Event):
    """``stage_in`` or ``stage_out`` began, for the ``tries``-th time in this attempt."""

    kind: ClassVar[str] = "stage_started"
    stage: str
    tries: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded(Event):
    """It is over; with ``cause`` and ``sentence`` where it failed."""

    kind: ClassVar[str] = "stage_ended"
    stage: str
    exit_code: int
    duration_s: float = 0.0
    stop_reason: str | None = None
    cause: str = ""
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStarted(Event):
    """The training processes were started."""

    kind: ClassVar[str] = "launch_started"
    resume_from: str | None = None
    progress: int | None = None  # newest step known before it
    log_file: str = ""  # relative to the run directory
    log_offset: int = 0  # bytes; where this launch's output begins


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSetAside(Event):
    """A checkpoint was moved out of the training's way. It is kept: ``path`` is where it lies since then."""

    kind: ClassVar[str] = "checkpoint_set_aside"
    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSent(Event):
    """The training was asked to save and leave."""

    kind: ClassVar[str] = "stop_sent"
    reason: str
    deadline: float | None = None
    detail: str = ""  # which nodes drain and why, which maintenance comes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNoticed(Event):
    """A node of the job drains, or a maintenance of it comes. ``followed``: the training is asked to leave for it."""

    kind: ClassVar[str] = "node_noticed"
    what: str
    detail: str
    followed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNoticed(Event):
    """Something about a running launch that a person wants to know: a slow rank, a checkpoint that is long due.

    ``over`` takes back what was said of the same ``what`` and ``rank``.
    """

    kind: ClassVar[str] = "launch_noticed"
    what: str  # straggler, checkpoint_age
    detail: str
    rank: int | None = None
    node: str = ""
    over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneTaken(Event):
    """What the nodes knew about a launch was kept. Where nobody could write this down any more, one may lie, too."""

    kind: ClassVar[str] = "scene_taken"
    path: str  # relative to the run directory
    ending: str  # failed, hung, warned, ended, after
    nodes: int  # that have taken it
    of: int
    duration_s: float = 0.0
    detail: str = ""  # what is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnded(Event):
    """The training processes are gone."""

    kind: ClassVar[str] = "launch_ended"
    exit_code: int
    signal: int | None = None
    duration_s: float = 0.0
    stop_reason: str | None = None
    progress: int | None = None  # newest checkpoint's step
    step: int | None = None  # highest step that the training told, by its heartbeat or in its log
    done: bool = False  # the training said that it has finished
    saved: str = ""  # asked to stop: what of its work was saved in time, in words
    rank_exits: tuple[Mapping[str, Any], ...] = ()
    log_end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed(Event):
    """Why a launch or an attempt ended."""

    kind: ClassVar[str] = "diagnosed"
    diagnosis: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Event):
    """What is to be done about it. ``again``: it holds once more, because the release of the run came to nothing."""

    kind: ClassVar[str] = "decided"
    decision: Mapping[str, Any] = field(default_factory=dict)
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted(Event):
    """A decision was carried out, or could not be."""

    kind: ClassVar[str] = "acted"
    action: str
    accepted: bool
    detail: str = ""
    leaves_at: float | None = None  # a requeue from inside: when the batch script ends, by slurmctld's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CameBack(Event):
    """The attempt was requeued from inside, and the next execution began; told by that one."""

    kind: ClassVar[str] = "came_back"
    clean_up_s: float  # from leaving until Slurm had cleaned up
    waited_s: float = 0.0  # from leaving to the start of the next execution


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Event):
    """How Slurm says that an execution ended."""

    kind: ClassVar[str] = "attempt_ended"
    job_id: str
    state: str
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    cancelled_by: int | None = None
    progress: int | None = None  # step of the newest checkpoint then


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """A person asked for the run to stop."""

    kind: ClassVar[str] = "stop_requested"
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreTrouble(Event):
    """Nothing could be written down from ``at`` to ``until``; what came in between was written late."""

    kind: ClassVar[str] = "store_trouble"
    problem: str
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(Event):
    """A person let a held run go on."""

    kind: ClassVar[str] = "released"
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(Event):
    """A person made a new run with the parameters of this one, which has ended."""

    kind: ClassVar[str] = "restarted"
    as_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownEvent(Event):
    """Written by a later version; kept for people, without effect."""

    kind: ClassVar[str] = "unknown"
    data: Mapping[str, Any] = field(default_factory=dict)


KINDS: Mapping[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        RunCreated,
        Submitted,
        SubmissionUncertain,
        JobSeen,
        AttemptStarted,
        StageStarted,
        StageEnded,
        LaunchStarted,
        CheckpointSetAside,
        StopSent,
        NodeNoticed,
        LaunchNoticed,
        SceneTaken,
        LaunchEnded,
        Diagnosed,
        Decided,
        Acted,
        CameBack,
        AttemptEnded,
        StopRequested,
        StoreTrouble,
        Released,
        Restarted,
    )
}


def event_to_dict(event: Event) -> dict[str, Any]:
    """Plain JSON values, ``kind`` first."""
    return {"kind": event.kind, **dataclasses.asdict(event)}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Inverse of ``event_to_dict``. Raises ``ValueError`` or ``TypeError`` for what is no event at all."""
    kind = KINDS.get(str(data.get("kind")))
    if kind is None:
        return UnknownEvent(at=float(data["at"]), who=str(data.get("who", "")), data=dict(data))
    types = _FIELDS[kind]
    values: dict[str, Any] = {key: _frozen(value) for key, value in data.items() if key in types}
    for name, value in values.items():
        if not isinstance(value, _TYPES[types[name]]):
            raise TypeError(f"{name} of {kind.kind} is no {types[name]}")
    if not all(isinstance(row, Mapping) for row in values.get("rank_exits", ())):
        raise TypeError("rank_exits holds mappings")
    return kind(**values)


_FIELDS = {kind: {item.name: str(item.type) for item in dataclasses.fields(kind)} for kind in KINDS.values()}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "str": str,
    "str | None": (str, type(None)),
    "int": int,
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "bool": bool,
    "Mapping[str, Any]": Mapping,
    "tuple[Mapping[str, Any], ...]": tuple,
}


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
