"""What slurmtrain needs of Slurm, whichever way it is asked: the protocol that every client keeps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import JobState


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job as slurmctld has it now (a row of squeue). Unset times are None; times are aware, UTC."""

    job_id: JobId
    state: JobState
    reason: str = ""
    restart_count: int = 0
    nodes: str = ""  # Slurm's node list expression, "" while pending
    node_count: int = 0
    exit_code: int | None = None  # exit code of the batch script; None until the state is an ended one
    signal: int | None = None  # the signal that ended the batch script, None without one
    submit_time: datetime | None = None
    begin_time: datetime | None = None  # earliest start (eligible time); None while held or waiting for a dependency
    start_time: datetime | None = None  # a forecast while the job is pending
    end_time: datetime | None = None  # while running: when the time limit (or a preemption's grace) ends it
    preempt_time: datetime | None = None  # set while a preemption's grace time runs
    time_limit: timedelta | None = None  # None: no limit
    required_nodes: str = ""
    partition: str = ""
    priority: int | None = None
    dependency: str = ""
    raw_job_id: int | None = None  # Slurm's own number of an array task or het component
    user_id: int | None = None
    requeue: bool = True  # Slurm may requeue it (``--requeue``); without it even ``scontrol requeue`` is refused


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of an accounting row: ``0``, ``batch``, ``extern``…"""

    name: str
    state: JobState
    exit_code: int | None
    signal: int | None
    nodes: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """One execution of a job in the accounting database: a requeued job has one for each execution.

    A row can be seen half written (FAILED with exit code 0 for a moment): believe an end after a second look. Up to
    25.05 sacct shows exit code 137 as signal 9. An execution that was cancelled while its requeue was completing keeps
    its REQUEUED row and gets no CANCELLED one.
    """

    job_id: JobId
    state: JobState
    exit_code: int | None
    signal: int | None
    derived_exit_code: int | None
    nodes: str
    reason: str
    submit_time: datetime | None
    start_time: datetime | None
    end_time: datetime | None
    time_limit: timedelta | None
    cancelled_by: int | None = None  # uid of who cancelled, where accounting says it
    steps: tuple[StepRecord, ...] = ()
    raw_job_id: int | None = None


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One compute node."""

    name: str
    states: frozenset[str]  # words in capitals, e.g. {"IDLE", "DRAIN"}
    reason: str = ""
    partitions: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()  # what ``--constraint`` may ask for


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """One reservation. Times are aware, UTC; None where Slurm did not say."""

    name: str
    flags: frozenset[str]  # words in capitals, e.g. {"MAINT", "IGNORE_JOBS"}
    nodes: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the controller: all jobs asked for. A job that is missing here was not seen, nothing more."""

    taken_at: datetime  # just before Slurm was asked
    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)
    latency: timedelta = timedelta(0)  # how long the answer took: Slurm's rate limiting shows in nothing else


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this cluster can do; probed once and cached."""

    version: tuple[int, int]  # (22, 5)
    accounting: bool
    min_job_age: timedelta  # how long slurmctld keeps an ended job; zero: for ever
    kill_wait: timedelta
    requeue_delay: timedelta  # how long Slurm makes a requeued job wait (cred_expire + 1 s, or requeue_delay)
    job_requeue: bool  # slurm.conf JobRequeue
    preempt_type: str
    cluster_name: str
    requeue_exit: str = ""  # slurm.conf RequeueExit
    requeue_exit_hold: str = ""
    max_array_size: int | None = None  # slurm.conf MaxArraySize: one more than the largest task number
    clock: datetime | None = None  # of slurmctld when it was asked, whole seconds
    preempt_mode: str = ""  # slurm.conf PreemptMode; a partition or a QOS may have one of its own
    epilog: bool = False  # an Epilog runs on the nodes before a job that ended is done with


class SlurmClient(Protocol):
    """One cluster.

    Every call raises ``SlurmUnavailableError`` when Slurm did not answer (nothing is known then, and an act may or may
    not have happened), ``SlurmRefusedError`` when it said no for good, ``JobNotFoundError`` when it knows no such job.
    """

    def submit(
        self,
        script: Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> JobId:
        """Hand a batch script over; the job's id. ``SlurmBusyError`` where a later try may be taken.

        ``options`` are sbatch's, ``arguments`` the script's.

        ``env`` is added to the environment that the job inherits. ``SBATCH_*`` and ``SLURM_*`` variables never have a
        say. ``SlurmUnavailableError`` leaves open whether the job exists: sbatch may give up on a job that then runs.
        """
        ...

    def check_submit(self, script: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Ask Slurm whether it would take the script (``sbatch --test-only``); its answer as a sentence."""
        ...

    def observe(self, job_ids: Collection[JobId] | None = None) -> Snapshot:
        """All jobs of this user (or only these) with one query. Ended jobs are in it as long as slurmctld keeps them.

        Array tasks are keyed ``123_4``, the leader of a het job ``123``, its other components ``123+1``…; asking for
        ``123`` gives every task and component.
        """
        ...

    def history(self, job_ids: Collection[JobId], *, since: datetime | None = None) -> list[AccountingRecord]:
        """Every execution that accounting knows of these jobs, oldest first; one query. Empty without accounting."""
        ...

    def requeue(self, job_id: JobId, *, only_running: bool) -> None:
        """Put a job back into the queue. Returns also when it is back there already.

        With ``only_running`` slurmctld itself, under its lock, leaves a job alone that is not RUNNING or SUSPENDED
        (ended, cancelled, pending), and **says so to nobody**: the call returns as if it had worked. So look afterwards
        (``observe``: a higher ``restart_count``). Without it an ended or cancelled job that slurmctld still knows is
        revived. ``SlurmRefusedError``: the job was submitted without ``--requeue``, or is no batch job.
        """
        ...

    def update_pending(
        self,
        job_id: JobId,
        *,
        start_after: timedelta | None = None,
        start_at: datetime | None = None,
        exclude: str | None = None,
    ) -> None:
        """Change when a requeued or pending job may start and which nodes it must avoid.

        ``start_after`` counts from now on; anything below 2 s counts as 2 s: slurmd refuses a job that starts again
        within the second of its end. ``start_at`` is that second of slurmctld's clock and nothing else, a past one
        means now: the caller sees to it that the end was 2 s earlier. Either makes slurmctld look for nodes within a
        second or, where it looked just before, after ``batch_sched_delay`` (3 s).
        ``exclude`` replaces the job's list (join it with ``excluded_nodes``); ``""`` empties it. Works while the
        requeued job is still COMPLETING. ``SlurmRefusedError`` when the job runs or has ended.
        """
        ...

    def excluded_nodes(self, job_id: JobId) -> str:
        """The node list that this job avoids now, ``""`` for none."""
        ...

    def hold(self, job_id: JobId) -> None:
        """Keep a pending job from starting; its owner can release it, whoever holds it."""
        ...

    def release(self, job_id: JobId) -> None:
        """Let a held job go. Slurm refuses its owner after ``JobHoldMaxRequeue`` and after an administrator's hold."""
        ...

    def cancel(self, job_id: JobId) -> None:
        """Cancel; a job that has ended or is unknown is no error."""
        ...

    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        """Send a signal (``KILL``, ``USR2``) to the tasks of one step; Slurm is silent about a step that has ended.

        ``JobNotFoundError`` when the whole job is gone.
        """
        ...

    def steps(self, job_id: JobId) -> list[str]:
        """Names of the steps that slurmctld says are running (``0``, ``1``, ``batch``, …); none for an unknown job."""
        ...

    def nodes(self, expression: str = "") -> list[NodeRecord]:
        """State of these nodes, or of all."""
        ...

    def reservations(self) -> list[ReservationRecord]:
        """All reservations that the caller may see, coming and present ones; one query."""
        ...

    def expand_nodes(self, expression: str) -> list[str]:
        """``n[1-3]`` → ``["n1", "n2", "n3"]``; no query."""
        ...

    def capabilities(self) -> Capabilities: ...
