"""slurmctld in memory: how jobs start, end, come back and are forgotten.

Follows ``src/slurmctld/job_mgr.c`` (``_job_requeue_op``, ``batch_requeue_fini``, ``job_signal``, ``_job_complete``,
``kill_running_job_by_node_name``) and was checked against traces of real clusters (``tests/data/slurm/*/traces``).
Where it differs from a real Slurm, it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import ENDED, BaseState, StateFlag
from slurmtrain.core.nodeset import fold_nodes
from slurmtrain.errors import JobNotFoundError, SlurmRefusedError
from slurmtrain.testing.clock import ManualClock
from slurmtrain.testing.memory_model import (
    Behaviour,
    MemoryConfig,
    MemoryJob,
    MemoryNode,
    MemoryPartition,
    MemoryRow,
    MemoryStepRow,
    Request,
    SignalSent,
)
from slurmtrain.testing.memory_records import ACTIVE, is_over

# From which version on, in the source or seen in traces:
_GRACE_EXIT_IS_PREEMPTED = (24, 5)  # before, a job that leaves within its grace time just COMPLETED or FAILED
_NODE_FAIL_HAS_EXIT_CODE = (24, 11)  # 1; squeue shows that number as a wait status: signal 1
_REVIVED_JOB_KEEPS_ITS_ROW = (25, 11)  # before, requeueing an ended job turned its row into REQUEUED
_NEVER_STARTED_HAS_NO_START = (25, 11)  # before, sacct gave a job that was cancelled while it waited a start

# slurmstepd/req.c, _handle_signal_container
_WHY = {
    "REQUEUED": "DUE TO JOB REQUEUE",
    "PREEMPTED": "DUE TO PREEMPTION",
    "NODE_FAIL": "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS",
    "TIMEOUT": "DUE TO TIME LIMIT",
}


class Controller:
    """Jobs, nodes and accounting rows, changed by requests and by time passing."""

    def __init__(
        self, config: MemoryConfig, clock: ManualClock, nodes: list[str], partitions: list[MemoryPartition]
    ) -> None:
        self.config = config
        self.clock = clock
        self.nodes = {name: MemoryNode(name) for name in nodes}
        self.partitions = {partition.name: partition for partition in partitions}
        self.default_partition = partitions[0].name
        self.jobs: dict[int, MemoryJob] = {}
        self.rows: list[MemoryRow] = []
        self.signals: list[SignalSent] = []
        self.on_signal: Callable[[SignalSent], None] | None = None
        self.on_start: Callable[[MemoryJob], None] | None = None
        self._next_id = 1

    # -- finding -----------------------------------------------------------------------------------------------------

    def find(self, job_id: JobId) -> list[MemoryJob]:
        """The jobs that an id names: one, or all tasks of an array."""
        return [job for job in self.jobs.values() if job.job_id == job_id or JobId(job.job_id.base) == job_id]

    def get(self, job_id: JobId) -> list[MemoryJob]:
        found = self.find(job_id)
        if not found:
            raise JobNotFoundError(f"Invalid job id specified for job {job_id}")
        return found

    # -- arriving ----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, behaviour: Behaviour) -> JobId:
        if request.partition and request.partition not in self.partitions:
            raise SlurmRefusedError("Batch job submission failed: Invalid partition name specified")
        request.partition = request.partition or self.default_partition
        base = self._next_id
        self._next_id += max(1, len(request.array_tasks))
        if not request.array_tasks:
            self._add(JobId(base), base, request, behaviour)
        for offset, task in enumerate(request.array_tasks):
            self._add(JobId(base, task), base + offset, request, behaviour)
        return JobId(base)

    def _add(self, job_id: JobId, raw_id: int, request: Request, behaviour: Behaviour) -> None:
        now = self.clock()
        limit = request.time_limit or self.partitions[request.partition].default_time
        begin = now + request.begin_after if request.begin_after else None if request.hold else now
        job = MemoryJob(raw_id, job_id, self.config.uid, request, behaviour, now, limit, begin)
        job.requeue = request.requeue
        job.excluded = frozenset(request.excluded)
        if request.hold:
            job.held, job.reason = "user", "JobHeldUser"
        self.jobs[raw_id] = job
        self._open_row(job)

    def _open_row(self, job: MemoryJob) -> None:
        job.row = MemoryRow(job.job_id, job.raw_id, "PENDING", job.submit_time, job.time_limit)
        self.rows.append(job.row)

    def start(self, job: MemoryJob, nodes: list[str]) -> None:
        now = self.clock()
        job.base, job.nodes, job.reason = BaseState.RUNNING, nodes, ""
        job.start_time, job.exit_code, job.signal, job.warned = now, 0, 0, False
        job.kill_signal = 0
        job.end_time = now + job.time_limit if job.time_limit else None
        job.exits_at = now + job.behaviour.runs if job.behaviour.runs is not None else None
        self.start_step(job, "batch", nodes[:1])
        if job.behaviour.step:
            self.start_step(job, "0", nodes)
        if job.row:
            job.row.state, job.row.start_time, job.row.nodes = "RUNNING", now, fold_nodes(nodes)
        if self.on_start:
            self.on_start(job)

    # -- steps -------------------------------------------------------------------------------------------------------

    def start_step(self, job: MemoryJob, name: str, nodes: list[str]) -> None:
        step = MemoryStepRow(name, "RUNNING", fold_nodes(nodes), self.clock())
        job.steps[name] = step
        if job.row:
            job.row.steps.append(step)

    def end_step(self, job: MemoryJob, name: str, state: str, exit_code: int, signal: int) -> None:
        step = job.steps.pop(name)
        step.state, step.exit_code, step.signal, step.end_time = state, exit_code, signal, self.clock()
        if job.row and name != "batch":
            job.row.derived_exit_code = max(job.row.derived_exit_code, exit_code)

    def send_signal(self, job: MemoryJob, name: str, target: str, why: str = "") -> None:
        sent = SignalSent(self.clock(), job.job_id, name, target, why)
        self.signals.append(sent)
        if self.on_signal:
            self.on_signal(sent)

    # -- ending ------------------------------------------------------------------------------------------------------

    def complete(self, job: MemoryJob, exit_code: int, signal: int = 0) -> None:
        """The batch script ended by itself."""
        if not job.running:
            job.clean_at = self.clock() if job.completing else job.clean_at
            return
        job.exit_code, job.signal = exit_code, signal
        failed = bool(exit_code or signal)
        job.reason = self._end_reason(exit_code, signal)
        self._end_steps(job, "FAILED" if failed else "COMPLETED", exit_code, signal)
        if job.grace_preempted and self.config.version >= _GRACE_EXIT_IS_PREEMPTED:
            job.grace_preempted = False
            self.evict(job)
            return
        self._end(job, BaseState.FAILED if failed else BaseState.COMPLETED)
        if exit_code in self.config.requeue_exit | self.config.requeue_exit_hold:
            self.requeue(job, only_running=False)
            if exit_code in self.config.requeue_exit_hold:
                job.flags.add(StateFlag.SPECIAL_EXIT)
                job.held, job.reason = "user", "JobHeldUser"

    def _end_reason(self, exit_code: int, signal: int) -> str:
        if signal:
            return "JobLaunchFailure" if self.config.version < (23, 2) else f"RaisedSignal:{signal}(Killed)"
        return "NonZeroExitCode" if exit_code else ""

    def kill(self, job: MemoryJob, base: BaseState, row_state: str = "") -> None:
        """Slurm ends the job: CONT, TERM, KillWait, KILL."""
        self._terminate(job, row_state or base.value)
        self._end(job, base, row_state)

    def _terminate(self, job: MemoryJob, word: str) -> None:
        self.send_signal(job, "TERM", "batch", _WHY.get(word, ""))
        self.send_signal(job, "TERM", "steps")
        job.kill_signal = 9 if job.behaviour.ignores_term else 15
        self._end_steps(job, "CANCELLED", 0, job.kill_signal)

    def _end_steps(self, job: MemoryJob, state: str, exit_code: int, signal: int) -> None:
        for name in list(job.steps):
            if name == "batch":
                self.end_step(job, name, state, exit_code, signal)
            else:
                self.end_step(job, name, "CANCELLED", 0, 15)

    def _end(self, job: MemoryJob, base: BaseState, row_state: str = "") -> None:
        job.base, job.end_time = base, self.clock()
        self._begin_cleanup(job)
        self._close_row(job, row_state or base.value)

    def _begin_cleanup(self, job: MemoryJob) -> None:
        job.flags.add(StateFlag.COMPLETING)
        job.exits_at = None
        wait = self.config.kill_wait if job.behaviour.ignores_term else self.config.cleanup
        job.clean_at = self.clock() + wait

    def _close_row(self, job: MemoryJob, state: str) -> None:
        if job.row:
            job.row.state, job.row.end_time = state, self.clock()
            if job.row.start_time is None and self.config.version < _NEVER_STARTED_HAS_NO_START:
                job.row.start_time = self.clock()
            job.row.exit_code, job.row.signal = job.exit_code, job.signal

    def finish_cleanup(self, job: MemoryJob) -> None:
        """The last process is gone and the epilog is over."""
        job.flags.discard(StateFlag.COMPLETING)
        job.clean_at = None
        if job.base is BaseState.PENDING:
            self._return_to_queue(job)
        elif job.kill_signal:  # squeue shows how the script ended once it has; accounting stays at 0:0
            job.signal = job.kill_signal

    def _return_to_queue(self, job: MemoryJob) -> None:
        """``batch_requeue_fini``: a begin time that is still to come is kept, otherwise cred_expire + 1 s."""
        now = self.clock()
        job.start_time = job.end_time = job.preempt_time = None
        job.nodes = []
        if job.begin_time is None or job.begin_time <= now:
            job.begin_time = now + self.config.cred_expire + timedelta(seconds=1)
        job.submit_time = now if now != job.submit_time else now + timedelta(seconds=1)
        self._open_row(job)  # the reason stays the old one until the next scheduling

    # -- requests ----------------------------------------------------------------------------------------------------

    def requeue(self, job: MemoryJob, *, only_running: bool, row_state: str = "REQUEUED") -> None:
        """``_job_requeue_op``: with ``only_running`` silent for a job that does not run."""
        if only_running and job.base not in ACTIVE:
            return
        if not job.requeue:
            raise SlurmRefusedError(f"Requested operation is presently disabled for job {job.job_id}")
        if job.base is BaseState.PENDING:
            return
        was_active, was_completing = job.base in ACTIVE, job.completing
        if not was_completing:
            job.end_time = self.clock()
        if was_active:
            self._terminate(job, row_state)
        job.base = BaseState.PENDING
        if was_active or self.config.version < _REVIVED_JOB_KEEPS_ITS_ROW:
            self._close_row(job, row_state)
        job.restart_count += 1
        if was_active:
            self._begin_cleanup(job)
        elif not was_completing:
            self._return_to_queue(job)

    def evict(self, job: MemoryJob) -> None:
        """Preempt now: requeue where the partition and the job allow it, otherwise the end."""
        job.preempt_time = job.preempt_time or self.clock()
        mode = self.partitions[job.request.partition].preempt_mode
        if job.requeue and mode == "REQUEUE":
            self.requeue(job, only_running=False, row_state="PREEMPTED")
        else:
            self.kill(job, BaseState.PREEMPTED)

    def cancel(self, job: MemoryJob, uid: int) -> None:
        if job.base in ENDED:
            return
        state = f"CANCELLED by {uid}"
        if job.running:
            self.kill(job, BaseState.CANCELLED, state)
        elif job.completing:  # on its way back: accounting keeps the REQUEUED row and never hears of the cancel
            job.base = BaseState.CANCELLED
        else:
            job.base, job.end_time = BaseState.CANCELLED, self.clock()
            job.flags -= {StateFlag.REQUEUE_HOLD, StateFlag.SPECIAL_EXIT}
            self._close_row(job, state)

    def lose(self, job: MemoryJob) -> None:
        """One of its nodes is down."""
        if not job.running:
            return
        row, code = job.row, int(self.config.version >= _NODE_FAIL_HAS_EXIT_CODE)
        if job.requeue:
            self.requeue(job, only_running=True, row_state="NODE_FAIL")
        else:
            job.reason = "NodeDown"
            self.kill(job, BaseState.NODE_FAIL)
            job.kill_signal = job.signal = code
        if row:
            row.exit_code = code

    # -- time passing ------------------------------------------------------------------------------------------------

    def moments(self) -> Iterator[datetime]:
        """When something happens by itself."""
        for job in self.jobs.values():
            begin = job.begin_time if job.waiting else None
            for moment in (job.clean_at, job.exits_at, begin, self._forget_at(job)):
                if moment is not None:
                    yield moment

    def settle(self) -> None:
        """What is due now, but for scheduling."""
        now = self.clock()
        for job in list(self.jobs.values()):
            if job.exits_at is not None and job.exits_at <= now and job.running:
                self.complete(job, job.behaviour.exit_code)
            if job.completing and job.clean_at is not None and job.clean_at <= now:
                self.finish_cleanup(job)
            forget_at = self._forget_at(job)
            if forget_at is not None and forget_at <= now:
                del self.jobs[job.raw_id]

    def _forget_at(self, job: MemoryJob) -> datetime | None:
        if not self.config.min_job_age or not is_over(job) or job.end_time is None:
            return None
        return job.end_time + self.config.min_job_age

    def tick(self) -> None:
        """The 30 s look at warnings, time limits and grace times."""
        now = self.clock()
        for job in list(self.jobs.values()):
            if not job.running or job.end_time is None:
                continue
            self._warn(job)
            if job.end_time > now:
                continue
            if job.preempt_time is not None:
                self.evict(job)
            else:
                job.reason = "TimeLimit"
                self.kill(job, BaseState.TIMEOUT)

    def _warn(self, job: MemoryJob) -> None:
        """``--signal``: once, up to 60 s early, never late."""
        if job.warned or not job.request.signal or job.end_time is None:
            return
        if job.end_time - self.clock() <= job.request.signal_lead + self.config.tick:
            job.warned = True
            self.send_signal(job, job.request.signal, "batch" if job.request.signal_batch else "steps")
