"""What the Slurm in memory consists of: nodes, partitions, jobs, accounting rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, StateFlag


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """The slurm.conf of a cluster in memory; Slurm's own defaults."""

    version: tuple[int, int] = (22, 5)
    cluster_name: str = "memory"
    uid: int = 1000  # who uses the client
    accounting: bool = True
    min_job_age: timedelta = timedelta(seconds=300)
    kill_wait: timedelta = timedelta(seconds=30)
    cred_expire: timedelta = timedelta(seconds=120)
    tick: timedelta = timedelta(seconds=30)  # how often slurmctld looks at time limits, warnings and grace times
    cleanup: timedelta = timedelta(seconds=1)  # COMPLETING of a job whose processes end when told
    max_submit_jobs: int | None = None
    requeue_exit: frozenset[int] = frozenset()
    requeue_exit_hold: frozenset[int] = frozenset()
    cpus_per_node: int = 8


@dataclass(slots=True)
class MemoryNode:
    name: str
    down: bool = False
    drain: bool = False
    reason: str = ""
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryPartition:
    """``preempt_mode`` is what happens to *its* jobs: REQUEUE, CANCEL or OFF."""

    name: str
    priority_tier: int = 1
    preempt_mode: str = "REQUEUE"
    grace: timedelta = timedelta(0)
    default_time: timedelta | None = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a job's processes do; without ``runs`` they run until the test ends them."""

    ignores_term: bool = False  # they live until KillWait is over
    runs: timedelta | None = None
    exit_code: int = 0  # of a script that ends by itself after ``runs``
    step: bool = False  # the script starts one step (``0``) over all its nodes


@dataclass(frozen=True, slots=True)
class SignalSent:
    """A signal that Slurm sent; ``target`` is ``batch``, ``steps`` or the name of one step.

    ``why`` is what slurmstepd writes into the job's log behind CANCELLED AT …; "" after a scancel.
    """

    at: datetime
    job_id: JobId
    name: str
    target: str
    why: str = ""


@dataclass(slots=True)
class MemoryRow:
    """An accounting row: one execution."""

    job_id: JobId
    raw_job_id: int
    state: str
    submit_time: datetime
    time_limit: timedelta | None
    start_time: datetime | None = None
    end_time: datetime | None = None
    nodes: str = ""
    exit_code: int = 0
    signal: int = 0
    derived_exit_code: int = 0
    reason: str = ""
    steps: list[MemoryStepRow] = field(default_factory=list)


@dataclass(slots=True)
class MemoryStepRow:
    name: str
    state: str
    nodes: str
    start_time: datetime
    end_time: datetime | None = None
    exit_code: int = 0
    signal: int = 0


@dataclass(slots=True)
class Request:
    """What sbatch was asked for."""

    partition: str = ""
    nodes: int = 1
    time_limit: timedelta | None = None
    requeue: bool = True
    hold: bool = False
    exclusive: bool = False
    excluded: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    begin_after: timedelta | None = None
    array_tasks: tuple[int, ...] = ()
    signal: str = ""  # "USR2"
    signal_batch: bool = False
    signal_lead: timedelta = timedelta(0)
    script: str = ""
    arguments: tuple[str, ...] = ()  # the batch script's own


@dataclass(slots=True)
class MemoryJob:
    """One job record of slurmctld. ``base`` and ``flags`` are the whole truth; commands show one word of it."""

    raw_id: int
    job_id: JobId
    uid: int
    request: Request
    behaviour: Behaviour
    submit_time: datetime
    time_limit: timedelta | None
    begin_time: datetime | None
    base: BaseState = BaseState.PENDING
    flags: set[StateFlag] = field(default_factory=set)
    reason: str = ""
    held: str = ""  # "", "user" or "admin"
    requeue: bool = True
    excluded: frozenset[str] = frozenset()
    restart_count: int = 0
    nodes: list[str] = field(default_factory=list)
    start_time: datetime | None = None
    end_time: datetime | None = None
    preempt_time: datetime | None = None
    grace_preempted: bool = False
    warned: bool = False
    exit_code: int = 0
    signal: int = 0
    kill_signal: int = 0
    steps: dict[str, MemoryStepRow] = field(default_factory=dict)
    row: MemoryRow | None = None
    clean_at: datetime | None = None
    exits_at: datetime | None = None

    @property
    def completing(self) -> bool:
        return StateFlag.COMPLETING in self.flags

    @property
    def running(self) -> bool:
        return self.base is BaseState.RUNNING

    @property
    def waiting(self) -> bool:
        """In the queue, the last execution's clean-up over."""
        return self.base is BaseState.PENDING and not self.completing
