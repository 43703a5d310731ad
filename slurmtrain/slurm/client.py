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
    exit_code: int | None = None  # exit code of the batch script, None while it has not ended
    signal: int | None = None
    submit_time: datetime | None = None
    begin_time: datetime | None = None  # earliest start (eligible time)
    start_time: datetime | None = None  # a forecast while the job is pending
    end_time: datetime | None = None
    preempt_time: datetime | None = None  # set while a preemption's grace time runs
    time_limit: timedelta | None = None  # None: no limit
    excluded_nodes: str = ""
    required_nodes: str = ""
    partition: str = ""
    priority: int | None = None
    dependency: str = ""
    raw_job_id: int | None = None  # Slurm's own number of an array task or het component


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of an accounting row: ``0``, ``batch``, ``extern``…"""

    name: str
    state: JobState
    exit_code: int | None
    signal: int | None
    nodes: str = ""


@dataclass(frozen=True, slots=True)
class AccountingRecord:
    """One execution of a job in the accounting database: a requeued job has one for each execution."""

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


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One compute node."""

    name: str
    states: frozenset[str]  # words in capitals, e.g. {"IDLE", "DRAIN"}
    reason: str = ""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at the controller: all jobs asked for. A job that is missing here was not seen, nothing more."""

    taken_at: datetime
    jobs: Mapping[JobId, JobRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this cluster can do; probed once and cached."""

    version: tuple[int, int]  # (22, 5)
    accounting: bool
    min_job_age: timedelta
    kill_wait: timedelta
    requeue_delay: timedelta  # how long Slurm makes a requeued job wait (cred_expire + 1 s, or requeue_delay)
    job_requeue: bool  # slurm.conf JobRequeue
    preempt_type: str
    cluster_name: str
    requeue_exit: str = ""  # slurm.conf RequeueExit
    requeue_exit_hold: str = ""


class SlurmClient(Protocol):
    """One cluster.

    Every call raises ``SlurmUnavailableError`` when Slurm did not answer (nothing is known then, and an act may or may
    not have happened), ``SlurmRefusedError`` when it said no for good, ``JobNotFoundError`` when it does not know the job.
    """

    def submit(
        self, script: Path, *, options: Sequence[str] = (), cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> JobId:
        """Hand a batch script over; the job's id. ``SlurmBusyError`` where a later try may be taken."""
        ...

    def check_submit(self, script: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        """Ask Slurm whether it would take the script (``sbatch --test-only``); its answer as a sentence."""
        ...

    def observe(self, job_ids: Collection[JobId] | None = None) -> Snapshot:
        """All jobs of this user (or only these) with one query. Ended jobs are in it as long as slurmctld keeps them."""
        ...

    def history(self, job_ids: Collection[JobId], *, since: datetime | None = None) -> list[AccountingRecord]:
        """Every execution that accounting knows of these jobs, oldest first; one query. Empty without accounting."""
        ...

    def requeue(self, job_id: JobId, *, only_running: bool) -> None:
        """Put a job back into the queue. With ``only_running`` Slurm refuses a job that has ended or was cancelled."""
        ...

    def update_pending(
        self, job_id: JobId, *, start_after: timedelta | None = None, exclude: str | None = None
    ) -> None:
        """Change when a requeued or pending job may start (from now on) and which nodes it must avoid."""
        ...

    def hold(self, job_id: JobId) -> None: ...

    def release(self, job_id: JobId) -> None: ...

    def cancel(self, job_id: JobId) -> None:
        """Cancel; a job that has ended or is unknown is no error."""
        ...

    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        """Send a signal (``KILL``, ``USR2``) to the tasks of one step."""
        ...

    def steps(self, job_id: JobId) -> list[str]:
        """Names of the steps that slurmctld says are running (``0``, ``1``, ``batch``, …)."""
        ...

    def nodes(self, expression: str = "") -> list[NodeRecord]:
        """State of these nodes, or of all."""
        ...

    def expand_nodes(self, expression: str) -> list[str]:
        """``n[1-3]`` → ``["n1", "n2", "n3"]``; no query."""
        ...

    def capabilities(self) -> Capabilities: ...
