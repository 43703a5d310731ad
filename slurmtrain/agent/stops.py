"""Why and when a running launch must be asked to save and leave.

A person (the run's stop file), the end of the time limit, a preemption in its grace time, a node that drains, a
maintenance that comes; and a signal that says one of them may be there. Slurm sends its warning up to a minute early,
so the clock decides about the time limit, not the signal.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from dataclasses import dataclass

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.nodes import NodeWatch
from slurmtrain.agent.say import say
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import is_running
from slurmtrain.core.ownership import Owner, find_rule, may_decide
from slurmtrain.core.spec import Spec, parse_time_limit, warning_lead_s
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import JobRecord, SlurmClient

_FILE_INTERVAL_S = 2.0  # between looks at the stop file on shared storage
_ASK_INTERVAL_S = 3.0  # between questions to Slurm, however many signals arrive
_REFRESH_BEFORE_S = 60.0  # before the end is near: an administrator may have moved it, a suspended job's end moves too
_MIN_RESERVE_S, _MAX_RESERVE_S = 5.0, 20.0
_TRANSIENT_S, _MAX_TRANSIENT = 1.0, 60
_WORD_S, _POLL_S = 0.5, 0.05  # how long a companion's word may take that a signal came to its step
PATIENCE_S = 600.0  # so long the job waits for a Slurm that does not answer (a restart of slurmctld takes minutes)


@dataclass(frozen=True, slots=True)
class StopReason:
    """``deadline`` is the time (epoch seconds) at which the launch is ended if it has not left by itself.

    ``grace_s`` is how long it then has from TERM to KILL, so that all is over before Slurm's own end.
    """

    reason: str
    deadline: float | None
    grace_s: float = 10.0
    detail: str = ""
    last: float | None = None  # until then a save that is in progress goes on


class StopWatch:
    """Looks out for reasons to stop; ``check`` is called at every turn of the launch loop."""

    def __init__(self, job: JobContext, slurm: SlurmClient, nodes: NodeWatch | None = None) -> None:
        self._job = job
        self._nodes = nodes
        self._spec = job.plan.spec
        self._slurm = slurm
        self.at_start = look(slurm, job.job_id)  # None where Slurm did not answer
        self._end_time = _end_time(self.at_start, self._spec)
        self._lead = float(warning_lead_s(self._spec))
        self._refresh_at = self._next_refresh()
        self._signalled = False
        self._told_at: float | None = None
        self._ended_by_slurm = False
        self._next_file_look = 0.0
        self._next_question = 0.0

    def on_signal(self, number: int) -> None:
        """Something told us to look: Slurm's warning, or a signal to the script or, which USR1 tells, to the steps."""
        self._signalled = True
        if number == signal.SIGUSR1:
            self._told_at = time.time()

    def hear_out(self, code: int) -> float | None:
        """When a signal from outside came to the steps last, by ``scancel --signal``; None where none did.

        A launch that ended well may have left for it a moment ago: the companion's word is waited for.
        """
        deadline = time.monotonic() + _WORD_S
        while code == 0 and self._told_at is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self._told_at

    @property
    def signalled(self) -> bool:
        """A signal came that nobody has looked into yet."""
        return self._signalled

    @property
    def ended_by_slurm(self) -> bool:
        """Slurm said, when it was last asked, that this execution does not run any more."""
        return self._ended_by_slurm

    def seconds_to_next_look(self) -> float:
        """How long the loop may sleep."""
        if self._signalled:
            return max(0.05, min(1.0, self._next_question - time.monotonic()))
        if self._end_time is None:
            return _FILE_INTERVAL_S
        return max(0.05, min(_FILE_INTERVAL_S, self._end_time - self._lead - time.time()))

    def check(self) -> StopReason | None:
        """The reason to stop now, if there is one."""
        if self._stop_file_exists():
            grace = float(self._spec.stop.grace_s)
            deadline = time.time() + max(self._lead, grace)
            return StopReason("user", deadline, grace, last=self._not_after(deadline + grace))
        if self._signalled and (found := self._ask()) is not None:
            return found
        self._refresh_end()
        if self._ended_by_slurm:
            return None
        if self._end_time is not None and time.time() >= self._end_time - self._lead:
            return self._before("time_limit", self._end_time, self._lead)
        return self._check_nodes()

    def _check_nodes(self) -> StopReason | None:
        move = self._nodes.check(self._end_time) if self._nodes is not None else None
        if move is None:
            return None
        if move.at is not None and move.at > time.time():
            return dataclasses.replace(self._before(move.reason, move.at, move.at - time.time()), detail=move.detail)
        grace = float(self._spec.stop.grace_s)
        deadline = time.time() + max(self._lead, grace)
        if self._end_time is not None:
            deadline = min(deadline, self._end_time - _MAX_RESERVE_S)
        return StopReason(move.reason, deadline, grace, move.detail, last=self._not_after(deadline + grace))

    def _not_after(self, at: float) -> float:
        return at if self._end_time is None else min(at, self._end_time - _MIN_RESERVE_S)

    def _stop_file_exists(self) -> bool:
        now = time.monotonic()
        if now < self._next_file_look:
            return False
        self._next_file_look = now + _FILE_INTERVAL_S
        return self._job.find_stop_request() is not None

    def _ask(self) -> StopReason | None:
        now = time.monotonic()
        if now < self._next_question:
            return None
        self._next_question = now + _ASK_INTERVAL_S
        self._signalled = False
        record = look(self._slurm, self._job.job_id)
        if record is None:
            self._signalled = True  # no answer: asked again
            return None
        self._ended_by_slurm = not is_ours(record, self._job.restart_count) and not is_transient(record)
        if self._ended_by_slurm:
            return None  # Slurm, or a person through Slurm, has ended it: the moment of that is no time limit
        self._take_end(record)
        if is_preempted(record):
            end = self._end_time if self._end_time is not None else time.time() + self._lead
            return self._before("preempted", end, max(0.0, end - time.time()))
        return None

    def _refresh_end(self) -> None:
        """Ask once more when the end comes closer: it may have been moved since."""
        if self._refresh_at is None or time.time() < self._refresh_at:
            return
        self._refresh_at = None
        record = look(self._slurm, self._job.job_id)
        if record is not None and is_ours(record, self._job.restart_count):
            self._take_end(record)

    def _next_refresh(self) -> float | None:
        """A minute before the stop is due, or half-way where that is closer."""
        if self._end_time is None:
            return None
        due = self._end_time - self._lead
        return max(due - _REFRESH_BEFORE_S, (time.time() + due) / 2)

    def _take_end(self, record: JobRecord) -> None:
        before = self._end_time
        if record.end_time is not None:
            self._end_time = record.end_time.timestamp()
        elif is_running(record.state):
            self._end_time = None  # the limit was lifted
        if self._end_time != before:
            self._refresh_at = self._next_refresh()

    def _before(self, reason: str, end: float, available: float) -> StopReason:
        """A stop that has to be over at ``end``: a third of the time, within bounds, is kept for the requeue."""
        reserve = min(_MAX_RESERVE_S, max(_MIN_RESERVE_S, available / 3))
        grace = max(1.0, min(float(self._spec.stop.grace_s), reserve - 3))
        return StopReason(reason, end - reserve, grace, last=end - _MIN_RESERVE_S)


def is_preempted(record: JobRecord | None) -> bool:
    """Whether the grace time of a preemption runs: squeue goes on saying RUNNING meanwhile."""
    return record is not None and record.preempt_time is not None


def is_ours(record: JobRecord, restart_count: int) -> bool:
    """Whether the agent of this execution may decide: exactly RUNNING, and not a later execution of the same job.

    After a node was lost and came back two executions of one job can be alive; squeue speaks of the later one.
    """
    return may_decide(Owner.AGENT, record.state, later=record.restart_count != restart_count)


def is_transient(record: JobRecord) -> bool:
    """Whether it only seems not to run: SIGNALING and RESIZING flicker, and who asks is not suspended any more."""
    return find_rule(record.state).passes


def look(slurm: SlurmClient, job_id: JobId) -> JobRecord | None:
    """The job as Slurm has it now; None where Slurm does not answer or does not know it: nothing is known then."""
    try:
        return slurm.observe([job_id]).jobs.get(job_id)
    except SlurmtrainError:
        return None


def look_patiently(slurm: SlurmClient, job_id: JobId, patience_s: float = PATIENCE_S) -> JobRecord | None:
    """As ``look``, but for a decision: a Slurm that does not answer is asked again for a while, and so is one whose
    answer is about to change. None after it, or where it does not know the job."""
    deadline = time.monotonic() + patience_s
    told, tries = False, _MAX_TRANSIENT
    while True:
        try:
            record = slurm.observe([job_id]).jobs.get(job_id)
            if record is None or not is_transient(record) or tries == 0:
                return record
            tries -= 1
            time.sleep(_TRANSIENT_S)
        except SlurmtrainError as exc:
            if time.monotonic() >= deadline:
                return None
            if not told:
                say(f"{exc}; waiting for Slurm, at most {patience_s:.0f} s")
                told = True
            time.sleep(_ASK_INTERVAL_S)


def _end_time(record: JobRecord | None, spec: Spec) -> float | None:
    if record is not None:
        return record.end_time.timestamp() if record.end_time is not None else None
    limit = parse_time_limit(spec.resources.time_limit) if spec.resources.time_limit else None
    return time.time() + limit if limit is not None else None
