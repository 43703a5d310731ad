"""What a user asks for: one training run, typed. Pure values; reading files and guessing is done by ``config``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Launcher = Literal["srun", "torchrun"]
SuccessRule = Literal["all", "primary"]
MANY_NODES = 32  # the most whose output goes into one log
OnNodeChange = Literal["continue", "ignore"]
StagePlace = Literal["first_node", "each_node"]
CoreRanks = Literal["first", "all"]
SHIPPED = ("logs", "scenes", "records", "checkpoints")


@dataclass(frozen=True, slots=True)
class Resources:
    """What Slurm is asked for, in sbatch's words. None leaves the choice to the cluster."""

    nodes: int = 1
    tasks_per_node: int = 1  # ranks on each node (torchrun: its --nproc-per-node; Slurm then gets one task a node)
    cpus_per_task: int | None = None  # for each rank
    gpus_per_node: int | None = None
    gres: str | None = None  # e.g. "gpu:h100:4"; instead of gpus_per_node
    memory: str | None = None  # per node, as sbatch --mem: "64G", "0" for all of it
    time_limit: str | None = None  # as sbatch -t: "90", "24:00:00", "2-12"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    exclusive: bool = False
    sbatch_options: tuple[str, ...] = ()  # further long options, "--licenses=a:1"


@dataclass(frozen=True, slots=True)
class Component:
    """A further part of a heterogeneous job, as ``Resources``. Time limit, account, exclude and the options of sbatch
    are those of ``resources``; so are partition, qos and reservation where they are None."""

    nodes: int = 1
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    gres: str | None = None
    memory: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Environment:
    """What each launch starts with."""

    setup: tuple[str, ...] = ()  # bash lines before each launch: "module load cuda", "source venv/bin/activate"
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """How the training is asked to save and leave."""

    signal: str = "USR2"  # sent to the rank processes that catch it; "none" for the stop file alone
    warning_s: int | None = None  # seconds before the end; None: min(300, 20 % of the time limit)
    grace_s: int = 30  # from TERM to KILL when a launch is ended
    folder: str | None = None  # absolute; a file there named like the run asks it to stop, whoever made it
    on_drain: OnNodeChange = "continue"  # elsewhere, where there is something to continue from
    on_maintenance: OnNodeChange = "continue"  # leave before a reservation for maintenance begins
    maintenance_lead_s: int | None = None  # seconds before it; None: as the warning before the time limit
    node_look_s: int = 120  # between looks at the job's nodes; 0: never


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the training writes checkpoints and how their names look."""

    dir: str = "checkpoints"  # relative to the run directory, or absolute
    pattern: str = "*"  # glob of names in it; the last number in a name is its step
    check: bool = True  # pass over what is not whole; false: the newest by its name
    max_age_s: int = 14400  # a warning when the newest is older while the training runs; 0: never
    marker: str | None = None  # file that the training writes last: in the folder, or beside the file as <name><marker>


@dataclass(frozen=True, slots=True)
class Hang:
    """When a launch that gives no sign of life (output, heartbeat, checkpoint) is ended and started again."""

    timeout_s: int | None = None  # None: 1800 once it has sent a heartbeat, never before; 0: never
    startup_s: int = 1800  # no launch hangs in its first seconds
    step_timeout_s: int | None = None  # without a new step, whatever else it writes; None or 0: never


@dataclass(frozen=True, slots=True)
class Logs:
    """Where the output of the ranks goes: into the job's log, or into one file for each node."""

    per_node: bool | None = None  # None: above 32 nodes


@dataclass(frozen=True, slots=True)
class SceneOptions:
    """What is kept of a failure (``evidence``)."""

    enabled: bool = True
    budget_s: int = 30  # for all collectors of a node; no requeue waits longer for them
    disable: tuple[str, ...] = ()  # names of collectors
    keep_first: int = 2  # so many launches of a run, from its first one on, keep all of theirs
    keep_last: int = 5  # and the newest ones; of those between only the manifests stay


@dataclass(frozen=True, slots=True)
class Retry:
    """Ceilings of the ladder. 0 switches a rung off."""

    in_place: int = 5  # restarts in place per attempt
    requeues: int = 3  # requeues per run for failures of the program
    infrastructure: int = 3  # requeues per run for failures of nodes and network
    attempts: int = 100  # of any kind, preemption and time limit included
    delay_s: int = 30  # from the second retry of one cause on
    exclude_nodes: bool = True  # keep a suspect node out of the next attempt
    exclude_for_s: int = 86400  # how long a suspect node stays out
    breaker_runs: int = 5  # so many runs that fail alike by nodes or network wait for one of them; 0: never
    breaker_s: int = 600  # within this time, and for so long at most
    max_gpu_hours: float | None = None  # that retries may cost; node hours for a job without GPUs
    deadline: str | None = None  # no retry after it: "72h" since submission, or a date with its zone
    causes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # other ceilings for single causes
    clean_up_s: int | None = None  # how long Slurm cleans up behind a job, epilog included; None: learnt


@dataclass(frozen=True, slots=True)
class StageIn:
    """What fetches data before the first launch of each attempt."""

    run: tuple[str, ...] = ()  # bash lines
    on: StagePlace = "first_node"
    time_limit_s: int = 3600


@dataclass(frozen=True, slots=True)
class StageOut:
    """What takes results away once the training has finished."""

    run: tuple[str, ...] = ()  # bash lines
    on: StagePlace = "first_node"
    time_limit_s: int = 3600
    after_failure: bool = False  # once, too, when an attempt ends with a failure


@dataclass(frozen=True, slots=True)
class CoreDumps:
    """Core files of ranks that crash in native code. They hold all that the process knew, secrets too."""

    enabled: bool = False
    ranks: CoreRanks = "first"  # that crashes in a launch
    size_limit: str = "16G"  # of each, as sbatch --mem; the kernel cuts it off there
    cuda: bool = False  # light ones of the GPU, too, for cuda-gdb
    keep: int = 2  # launches of a run, the newest ones, whose core files stay


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """The container of a launch that failed, saved as an image where its run-time can."""

    save: bool = False
    size_limit: str = "20G"  # of the image, as sbatch --mem


@dataclass(frozen=True, slots=True)
class Ship:
    """What is copied to remote storage while the training runs and after it. Credentials are never written here."""

    url: str | None = None  # any fsspec URL, "s3://bucket/prefix"; None: nothing is shipped
    what: tuple[str, ...] = ("logs", "scenes", "records")  # of ``SHIPPED``
    checkpoints: int = 1  # the newest so many valid ones, where ``what`` names checkpoints
    rate: str = "20MB/s"  # at most, on average
    every_s: int = 60  # between two looks for something new
    linger_s: int = 10  # that the end of a job may wait for its last lines to be sent
    endpoint: str | None = None  # of an S3 server that is not AWS
    profile: str | None = None  # section of ~/.aws/config and ~/.aws/credentials
    keep_days: int | None = None  # remote copies of runs that ended earlier are deleted
    keep_runs: int | None = None  # and those of all but the newest so many


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. Every field has a plain JSON form: ``spec_to_dict`` and ``spec_from_dict`` are inverse."""

    command: tuple[str, ...]
    name: str = "train"
    launcher: Launcher = "srun"
    workdir: str | None = None  # None: where submit was called
    success: SuccessRule = "all"
    resources: Resources = field(default_factory=Resources)
    environment: Environment = field(default_factory=Environment)
    stop: Stop = field(default_factory=Stop)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hang: Hang = field(default_factory=Hang)
    logs: Logs = field(default_factory=Logs)
    scene: SceneOptions = field(default_factory=SceneOptions)
    retry: Retry = field(default_factory=Retry)
    stage_in: StageIn = field(default_factory=StageIn)
    stage_out: StageOut = field(default_factory=StageOut)
    core_dumps: CoreDumps = field(default_factory=CoreDumps)
    container: ContainerOptions = field(default_factory=ContainerOptions)
    ship: Ship = field(default_factory=Ship)
    companion: bool = True  # one small helper process per node
    components: tuple[Component, ...] = ()  # parts of a heterogeneous job beside ``resources``, which is its first
    array: str | None = None  # as sbatch -a: "0-7%4"; each task is a run of its own
    rescue: bool = False  # a job that Slurm starts when the run's job fails, for a run that nobody watches
    rescue_options: tuple[str, ...] = ()  # sbatch's long options for it, "--partition=cpu"
    srun_options: tuple[str, ...] = ()  # further options of the launch's srun
    torchrun_options: tuple[str, ...] = ()


_T = TypeVar("_T")
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([kmg]i?|)b(?:/s)?", re.IGNORECASE | re.ASCII)


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """The spec as plain JSON values."""
    return dataclasses.asdict(spec)


def spec_from_dict(data: Mapping[str, Any]) -> Spec:
    """Inverse of ``spec_to_dict``; keys of later versions are passed over (an old agent may read a new plan).

    Raises ``TypeError`` for what is no spec.
    """
    return _build(Spec, data)


@lru_cache(maxsize=64)  # evaluating annotations is most of the work of reading a plan
def _hints_of(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _build(kind: type[_T], data: Mapping[str, Any]) -> _T:
    hints = _hints_of(kind)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]
        if item.name not in data:
            continue
        value, hint = data[item.name], hints[item.name]
        if dataclasses.is_dataclass(hint):
            if not isinstance(value, Mapping):
                raise TypeError(f"{item.name} is no mapping")
            value = _build(hint, value)  # type: ignore[arg-type]
        elif isinstance(value, (list, tuple)):
            value = _build_list(value, hint)
        elif not _fits(value, hint):
            raise TypeError(f"{item.name} is no {getattr(hint, '__name__', hint)}")
        values[item.name] = value
    return kind(**values)


def _build_list(value: list[Any] | tuple[Any, ...], hint: Any) -> tuple[Any, ...]:
    kind = (*get_args(hint), None)[0]
    if not dataclasses.is_dataclass(kind):
        return tuple(value)
    if not all(isinstance(item, Mapping) for item in value):
        raise TypeError("a component is no mapping")
    return tuple(_build(kind, item) for item in value)  # type: ignore[arg-type]


def all_components(spec: Spec) -> tuple[Resources | Component, ...]:
    """``resources`` and the further components of a heterogeneous job, in Slurm's order."""
    return (spec.resources, *spec.components)


def has_node_logs(spec: Spec) -> bool:
    """Whether the ranks of each node write a log of their own: on request, and where there are many nodes."""
    if spec.logs.per_node is not None:
        return spec.logs.per_node
    return sum(part.nodes for part in all_components(spec)) > MANY_NODES


def _fits(value: object, hint: Any) -> bool:
    """Whether a value has the outer type of a hint; what is inside a container is not looked at."""
    plain = get_origin(hint) or hint  # in Python 3.10 isinstance takes list[int] for a type
    if plain is Literal:
        return value in get_args(hint)
    if plain in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    return isinstance(value, plain) if isinstance(plain, type) else True


def parse_time_limit(text: str) -> int | None:
    """Seconds of a Slurm time limit (``90``, ``90:30``, ``1:30:00``, ``2-12``, ``2-12:30:00``); None for no limit.

    Raises ``ValueError`` otherwise. Source: man sbatch, --time.
    """
    value = text.strip()
    if value.upper() in {"UNLIMITED", "INFINITE"} or value == "0":  # zero asks for no limit
        return None
    days, dash, rest = value.rpartition("-")
    parts = rest.split(":")
    if not all(_is_number(p) for p in parts) or len(parts) > 3 or (dash and not _is_number(days)):
        raise ValueError(f"{text[:40]!r} is not a time limit: write minutes, HH:MM:SS or D-HH:MM:SS")
    numbers = [int(p) for p in parts]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 1:
        return numbers[0] * 60
    if len(numbers) == 2:
        return numbers[0] * 60 + numbers[1]
    return numbers[0] * 3600 + numbers[1] * 60 + numbers[2]


def parse_rate(text: str) -> int:
    """Bytes per second of ``20MB/s``, ``500KB/s``, ``1.5MiB/s``. Raises ``ValueError``."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a rate: write it like 20MB/s")
    unit = match[2].lower()
    value = int(float(match[1]) * (1024 if unit.endswith("i") else 1000) ** " kmg".index(unit[:1] or " "))
    if not 10_000 <= value <= 100_000_000_000:
        raise ValueError(f"{text[:40]!r}: a rate is between 10KB/s and 100GB/s")
    return value


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def warning_lead_s(spec: Spec) -> int:
    """Seconds before the end of the time limit at which the training is asked to save and leave."""
    if spec.stop.warning_s is not None:
        return spec.stop.warning_s
    limit = parse_time_limit(spec.resources.time_limit) if spec.resources.time_limit else None
    return 300 if limit is None else max(5, min(300, limit // 5))
