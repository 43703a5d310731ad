"""``MemorySlurm``: the SlurmClient protocol over a cluster in memory with a hand-driven clock."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import StateFlag
from slurmtrain.core.nodeset import expand_nodes, fold_nodes
from slurmtrain.errors import SlurmBusyError, SlurmRefusedError, SlurmUnavailableError
from slurmtrain.slurm.client import AccountingRecord, Capabilities, NodeRecord, ReservationRecord, Snapshot
from slurmtrain.slurm.commands import MIN_START_DELAY_S
from slurmtrain.testing.clock import ManualClock
from slurmtrain.testing.memory_controller import Controller
from slurmtrain.testing.memory_model import Behaviour, MemoryConfig, MemoryJob, MemoryPartition, SignalSent
from slurmtrain.testing.memory_records import build_accounting_record, build_job_record, build_node_record
from slurmtrain.testing.memory_scheduler import cpus_in_use, schedule
from slurmtrain.testing.sbatch_options import parse_request

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_PARTITIONS = (
    MemoryPartition("batch"),
    MemoryPartition("graced", grace=timedelta(seconds=20)),
    MemoryPartition("urgent", priority_tier=10, preempt_mode="OFF"),
)


class FaultKind(Enum):
    """What goes wrong with a call."""

    UNAVAILABLE = "Slurm does not answer; nothing happened"
    REPLY_LOST = "accepted, but the reply was lost"
    BUSY = "not now"


@dataclass(slots=True)
class Fault:
    """The next ``times`` calls of ``call`` (``*``: any) fail, after ``skip`` that do not."""

    kind: FaultKind
    call: str = "*"
    times: int = 1
    skip: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made, also one that failed."""

    at: datetime
    name: str
    arguments: str


def _slurm_call(method: Callable[Concatenate[MemorySlurm, P], R]) -> Callable[Concatenate[MemorySlurm, P], R]:
    """Count the call, let faults and the test's hook have their say, and let Slurm catch up with it."""

    @functools.wraps(method)
    def call(self: MemorySlurm, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            name = method.__name__
            shown = ", ".join([*(str(arg) for arg in args), *(f"{key}={value}" for key, value in kwargs.items())])
            self.calls.append(Call(self.clock(), name, shown))
            if self.on_call:
                self.on_call(name, "before")
            fault = self._take_fault(name)
            if fault is FaultKind.UNAVAILABLE:
                raise SlurmUnavailableError(f"cannot {name}: Unable to contact slurm controller (connect failure)")
            if fault is FaultKind.BUSY:
                raise SlurmBusyError(f"cannot {name}: Slurm temporarily unable to accept job")
            answer = method(self, *args, **kwargs)
            self.controller.settle()
            if self.on_call:
                self.on_call(name, "after")
            if fault is FaultKind.REPLY_LOST:
                raise SlurmUnavailableError(f"cannot {name}: Socket timed out on send/recv operation")
            return answer

    return call


class MemorySlurm:
    """A cluster in memory. Time moves only with ``advance``; jobs start only while it does, never within a call.

    ``on_call(name, "before" | "after")`` may raise, to end the caller at a Slurm command. ``on_start(job)`` and
    ``on_signal(sent)`` let a test play the batch script.
    """

    def __init__(
        self,
        *,
        nodes: Sequence[str] = ("n1", "n2", "n3", "n4"),
        partitions: Sequence[MemoryPartition] = DEFAULT_PARTITIONS,
        config: MemoryConfig | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self.config = config or MemoryConfig()
        self.clock = clock or ManualClock()
        self.controller = Controller(self.config, self.clock, list(nodes), list(partitions))
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.on_call: Callable[[str, str], None] | None = None
        self.behaviour = Behaviour()  # of jobs submitted from now on
        self.reserved: list[ReservationRecord] = []  # seen by clients; the scheduler pays them no heed
        self._lock = threading.RLock()
        self._next_tick = self.clock() + self.config.tick

    # -- the test's side ---------------------------------------------------------------------------------------------

    def advance(self, step: timedelta | float) -> None:
        """Let time pass (seconds, or a timedelta); everything that is due on the way happens at its moment."""
        with self._lock:
            target = self.clock() + (step if isinstance(step, timedelta) else timedelta(seconds=step))
            self.controller.settle()
            schedule(self.controller)
            while True:
                due = [moment for moment in self.controller.moments() if self.clock() < moment <= target]
                moment = min([*due, self._next_tick, target])
                self.clock.set(moment)
                if moment == self._next_tick:
                    self._next_tick += self.config.tick
                    self.controller.tick()
                self.controller.settle()
                schedule(self.controller)
                if moment == target:
                    return

    def inject(self, kind: FaultKind, call: str = "*", *, times: int = 1, skip: int = 0) -> None:
        self.faults.append(Fault(kind, call, times, skip))

    def job(self, job_id: JobId) -> MemoryJob:
        """The whole truth about one job; ``JobNotFoundError`` once it is purged."""
        return self.controller.get(job_id)[0]

    @property
    def signals(self) -> list[SignalSent]:
        return self.controller.signals

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        """The job's batch script ends by itself (or, in COMPLETING, its last process does)."""
        for job in self.controller.get(job_id):
            self.controller.complete(job, exit_code, signal)
        self.controller.settle()

    def start_step(self, job_id: JobId, name: str) -> None:
        job = self.job(job_id)
        self.controller.start_step(job, name, job.nodes)

    def end_step(self, job_id: JobId, name: str, exit_code: int = 0, signal: int = 0) -> None:
        state = "FAILED" if exit_code or signal else "COMPLETED"
        self.controller.end_step(self.job(job_id), name, state, exit_code, signal)

    def hold_for_max_requeue(self, job_id: JobId) -> None:
        """The batch host was lost once too often: requeued and held, and its owner cannot release it."""
        for job in self.controller.get(job_id):
            self.controller.requeue(job, only_running=False)
            job.flags.add(StateFlag.REQUEUE_HOLD)
            job.held, job.reason = "admin", "JobHoldMaxRequeue"

    def cancel_as(self, job_id: JobId, uid: int) -> None:
        """Another person (root: 0) cancels."""
        for job in self.controller.get(job_id):
            self.controller.cancel(job, uid)
        self.controller.settle()

    def fail_node(self, name: str, reason: str = "Not responding") -> None:
        """The node is DOWN from now on; its jobs are lost."""
        self.controller.nodes[name].down, self.controller.nodes[name].reason = True, reason
        for job in list(self.controller.jobs.values()):
            if name in job.nodes:
                self.controller.lose(job)
        self.controller.settle()

    def drain_node(self, name: str, reason: str = "maintenance") -> None:
        self.controller.nodes[name].drain, self.controller.nodes[name].reason = True, reason

    def restore_node(self, name: str) -> None:
        node = self.controller.nodes[name]
        node.down, node.drain, node.reason = False, False, ""
        self.controller.settle()

    def _take_fault(self, name: str) -> FaultKind | None:
        for fault in self.faults:
            if fault.call not in ("*", name) or fault.times < 1:
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            return fault.kind
        return None

    # -- SlurmClient -------------------------------------------------------------------------------------------------

    @_slurm_call
    def submit(
        self,
        script: Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> JobId:
        limit = self.config.max_submit_jobs
        active = [job for job in self.controller.jobs.values() if job.end_time is None or job.running]
        if limit is not None and len(active) >= limit:
            raise SlurmBusyError("cannot submit: AssocMaxSubmitJobLimit; Job violates accounting/QOS policy")
        request = parse_request(_read(script), options)
        request.arguments = tuple(arguments)
        return self.controller.submit(request, self.behaviour)

    @_slurm_call
    def check_submit(self, script: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        request = parse_request(_read(script), ())
        if request.partition and request.partition not in self.controller.partitions:
            raise SlurmRefusedError("allocation failure: Invalid partition name specified")
        if request.nodes > len(self.controller.nodes):
            raise SlurmRefusedError("allocation failure: Requested node configuration is not available")
        return f"Job to start in partition {request.partition or self.controller.default_partition}"

    @_slurm_call
    def observe(self, job_ids: Collection[JobId] | None = None) -> Snapshot:
        jobs = [job for job in self.controller.jobs.values() if _is_wanted(job, job_ids)]
        return Snapshot(self.clock(), {job.job_id: build_job_record(job) for job in jobs})

    @_slurm_call
    def history(self, job_ids: Collection[JobId], *, since: datetime | None = None) -> list[AccountingRecord]:
        if not self.config.accounting:
            return []
        wanted = [row for row in self.controller.rows if row.job_id in job_ids or JobId(row.job_id.base) in job_ids]
        records = [build_accounting_record(row) for row in wanted]
        return [record for record in records if since is None or record.end_time is None or record.end_time >= since]

    @_slurm_call
    def requeue(self, job_id: JobId, *, only_running: bool) -> None:
        for job in self.controller.get(job_id):
            self.controller.requeue(job, only_running=only_running)

    @_slurm_call
    def update_pending(
        self,
        job_id: JobId,
        *,
        start_after: timedelta | None = None,
        start_at: datetime | None = None,
        exclude: str | None = None,
    ) -> None:
        for job in self.controller.get(job_id):
            if job.base.value != "PENDING":
                what = "Job is no longer pending execution" if job.running else "Job has already finished"
                raise SlurmRefusedError(f"cannot change pending job {job_id}: {what} for job {job_id}")
            if exclude is not None:
                job.excluded = frozenset(expand_nodes(exclude))
            if start_at is not None:
                job.begin_time = max(start_at, self.clock())
            elif start_after is not None:
                job.begin_time = self.clock() + max(start_after, timedelta(seconds=MIN_START_DELAY_S))

    @_slurm_call
    def excluded_nodes(self, job_id: JobId) -> str:
        return fold_nodes(self.job(job_id).excluded)

    @_slurm_call
    def hold(self, job_id: JobId) -> None:
        for job in self.controller.get(job_id):
            if job.base.value != "PENDING":
                raise SlurmRefusedError(f"cannot hold job {job_id}: Job is no longer pending execution")
            job.held, job.reason = "user", "JobHeldUser"

    @_slurm_call
    def release(self, job_id: JobId) -> None:
        for job in self.controller.get(job_id):
            if job.held == "admin":
                raise SlurmRefusedError(f"cannot release job {job_id}: Access/permission denied")
            job.held, job.reason = "", ""
            job.flags = {flag for flag in job.flags if flag.value == "COMPLETING"}

    @_slurm_call
    def cancel(self, job_id: JobId) -> None:
        for job in self.controller.find(job_id):
            self.controller.cancel(job, self.config.uid)

    @_slurm_call
    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        job = self.job(job_id)
        if str(step) not in job.steps:
            return
        self.controller.send_signal(job, signal_name, str(step))
        if signal_name == "KILL" and step != "batch" and str(step) in job.steps:  # a test's hook may have ended it
            self.controller.end_step(job, str(step), "CANCELLED", 0, 9)

    @_slurm_call
    def steps(self, job_id: JobId) -> list[str]:
        return [name for job in self.controller.find(job_id) for name in job.steps]

    @_slurm_call
    def nodes(self, expression: str = "") -> list[NodeRecord]:
        wanted = expand_nodes(expression) if expression else list(self.controller.nodes)
        partitions = tuple(self.controller.partitions)
        cpus = self.config.cpus_per_node
        return [
            build_node_record(self.controller.nodes[name], cpus_in_use(self.controller, name), cpus, partitions)
            for name in wanted
            if name in self.controller.nodes
        ]

    @_slurm_call
    def reservations(self) -> list[ReservationRecord]:
        return list(self.reserved)

    def expand_nodes(self, expression: str) -> list[str]:
        return expand_nodes(expression)

    @_slurm_call
    def capabilities(self) -> Capabilities:
        return Capabilities(
            version=self.config.version,
            accounting=self.config.accounting,
            min_job_age=self.config.min_job_age,
            kill_wait=self.config.kill_wait,
            requeue_delay=self.config.cred_expire + timedelta(seconds=1),
            job_requeue=True,
            preempt_type="preempt/partition_prio",
            preempt_mode=self.controller.partitions[self.controller.default_partition].preempt_mode,
            cluster_name=self.config.cluster_name,
            requeue_exit=",".join(str(code) for code in sorted(self.config.requeue_exit)),
            requeue_exit_hold=",".join(str(code) for code in sorted(self.config.requeue_exit_hold)),
        )


def _read(script: Path) -> str:
    try:
        return script.read_text(encoding="utf-8", errors="replace")
    except OSError as exc:
        raise SlurmRefusedError(f"cannot submit {script}: Unable to open file {script}") from exc


def _is_wanted(job: MemoryJob, job_ids: Collection[JobId] | None) -> bool:
    return job_ids is None or job.job_id in job_ids or JobId(job.job_id.base) in job_ids
