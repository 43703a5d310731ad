"""SlurmClient over pyslurm, in a child process per call; what pyslurm cannot do goes to the command line's client.

Tried with pyslurm 25.11.2 on Slurm 25.11. It cannot: requeue only a running job (``Incomplete``), so that a scancel
could be undone; submit a script with its ``#SBATCH`` lines as sbatch reads them; give every execution of a requeued job
(its records are keyed by job id); act on an array or a het job as a whole; hold a job as its owner (it crashes); signal
a step (nothing happens). Its exit codes above 127 have 128 taken off.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from slurmtrain.core.jobid import JobId
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.errors import JobNotFoundError, SlurmRefusedError, SlurmUnavailableError, SpecError
from slurmtrain.hosts.local import CommandResult, Host
from slurmtrain.slurm import parse
from slurmtrain.slurm.client import (
    AccountingRecord,
    Capabilities,
    JobRecord,
    NodeRecord,
    ReservationRecord,
    SlurmClient,
    Snapshot,
)
from slurmtrain.slurm.commands import MIN_START_DELAY_S
from slurmtrain.slurm.environment import query_environment
from slurmtrain.slurm.failures import Failure, build_error, classify_failure, sentence_of

CALL_TIMEOUT_S = 60.0
_WORKER = Path(__file__).with_name("pyslurm_worker.py")
_MARK = "slurmtrain-pyslurm "  # the worker's, which must not be imported here
_INSTALL = (
    "pip install 'slurmtrain[pyslurm]' needs Slurm's headers, and pyslurm's version must be Slurm's (25.11.x for 25.11)"
)


class _CompoundJobError(Exception):
    """The job is an array or a het job."""


class PySlurmClient:
    """One cluster, through libslurm on this machine. ``commands`` does what pyslurm cannot."""

    def __init__(
        self,
        host: Host,
        commands: SlurmClient,
        *,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        user_id: int | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._host = host
        self._commands = commands
        self._python = python
        self._environ = query_environment(os.environ if environ is None else environ)
        self._user_id = os.getuid() if user_id is None else user_id
        self._now = now
        self._capabilities: Capabilities | None = None
        self._lock = threading.Lock()

    # -- looking -----------------------------------------------------------------------------------------------------

    def observe(self, job_ids: Collection[JobId] | None = None) -> Snapshot:
        taken_at = self._now()
        if job_ids is not None and not job_ids:
            return Snapshot(taken_at)
        started = time.monotonic()
        user_id = self._user_id if job_ids is None else None
        rows = self._ask("load_jobs", "ask Slurm for its jobs", user_id=user_id)
        latency = timedelta(seconds=time.monotonic() - started)
        records = [record for row in rows for record in _job_records(row)]
        wanted = (record for record in records if job_ids is None or parse.is_wanted(record.job_id, job_ids))
        return Snapshot(taken_at, {record.job_id: record for record in wanted}, latency)

    def excluded_nodes(self, job_id: JobId) -> str:
        for row in self._ask("load_jobs", f"look at job {job_id}", user_id=None):
            if any(record.job_id == job_id for record in _job_records(row)):
                return str(row["ExcNodes"])
        raise JobNotFoundError(f"cannot look at job {job_id}: Invalid job id specified")

    def steps(self, job_id: JobId) -> list[str]:
        jobs = self.observe([job_id]).jobs
        raw_ids = [record.raw_job_id for record in jobs.values() if record.nodes]
        return [step for raw_id in raw_ids for step in self._steps(raw_id)]

    def _steps(self, raw_job_id: int | None) -> list[str]:
        try:
            return list(self._ask("load_steps", f"look at job {raw_job_id}", raw_job_id=raw_job_id))
        except (JobNotFoundError, SlurmRefusedError):  # "Failed to load step info": it has none
            return []

    def nodes(self, expression: str = "") -> list[NodeRecord]:
        records = parse.build_nodes(self._ask("load_nodes", "ask Slurm for its nodes"))
        names = set(expand_nodes(expression))
        return [record for record in records if not expression or record.name in names]

    def reservations(self) -> list[ReservationRecord]:
        return self._commands.reservations()

    def expand_nodes(self, expression: str) -> list[str]:
        return expand_nodes(expression)

    def capabilities(self) -> Capabilities:
        with self._lock:
            if self._capabilities is None:
                settings = self._ask("load_config", "ask Slurm for its configuration")
                self._capabilities = parse.parse_config(
                    "\n".join(f"{name} = {value}" for name, value in settings.items())
                )
            return self._capabilities

    def history(self, job_ids: Collection[JobId], *, since: datetime | None = None) -> list[AccountingRecord]:
        return self._commands.history(job_ids, since=since)

    # -- acting ------------------------------------------------------------------------------------------------------

    def submit(
        self,
        script: Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> JobId:
        return self._commands.submit(script, options=options, arguments=arguments, cwd=cwd, env=env)

    def check_submit(self, script: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        return self._commands.check_submit(script, cwd=cwd, env=env)

    def requeue(self, job_id: JobId, *, only_running: bool) -> None:
        def by_command() -> None:
            self._commands.requeue(job_id, only_running=only_running)

        if only_running:
            by_command()
        else:
            self._act("requeue", f"requeue job {job_id}", job_id, by_command, fine=(Failure.ALREADY_PENDING,))

    def update_pending(
        self,
        job_id: JobId,
        *,
        start_after: timedelta | None = None,
        start_at: datetime | None = None,
        exclude: str | None = None,
    ) -> None:
        def by_command() -> None:
            self._commands.update_pending(job_id, start_after=start_after, start_at=start_at, exclude=exclude)

        if start_after is None and start_at is None and not exclude:  # pyslurm leaves out an empty list
            by_command()
            return
        begin = None
        if start_at is not None:
            begin = int(start_at.timestamp())
        elif start_after is not None:
            begin = round(self._now().timestamp() + max(MIN_START_DELAY_S, start_after.total_seconds()))
        excluded = expand_nodes(exclude) if exclude else None
        if exclude == "":
            self._commands.update_pending(job_id, exclude="")
        self._act("update", f"change pending job {job_id}", job_id, by_command, begin_time=begin, excluded=excluded)

    def hold(self, job_id: JobId) -> None:
        self._commands.hold(job_id)  # pyslurm 25.11.2's hold(mode="user") ends the process (a null pointer)

    def release(self, job_id: JobId) -> None:
        self._act("release", f"release job {job_id}", job_id, lambda: self._commands.release(job_id))

    def cancel(self, job_id: JobId) -> None:
        fine = (Failure.JOB_UNKNOWN, Failure.JOB_ENDED)
        self._act("cancel", f"cancel job {job_id}", job_id, lambda: self._commands.cancel(job_id), fine=fine)

    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        self._commands.signal_step(job_id, step, signal_name)  # pyslurm 25.11.2 says yes and sends nothing

    def _act(
        self,
        call: str,
        doing: str,
        job_id: JobId,
        by_command: Callable[[], None],
        fine: Collection[Failure] = (),
        **arguments: object,
    ) -> None:
        if job_id.array_task is not None or job_id.het_offset is not None:
            by_command()
            return
        try:
            self._ask(call, doing, fine=fine, raw_job_id=job_id.base, **arguments)
        except _CompoundJobError:
            by_command()

    # -- the worker --------------------------------------------------------------------------------------------------

    def _ask(self, call: str, doing: str, *, fine: Collection[Failure] = (), **arguments: object) -> Any:
        request = json.dumps({"call": call, **arguments}) + "\n"
        argv = [self._python, str(_WORKER)]
        result = self._host.run(argv, timeout_s=CALL_TIMEOUT_S, stdin=request, env=self._environ)
        reply = _reply_of(result)
        if reply is None:
            said = sentence_of(CommandResult(("libslurm",), result.exit_code, "", result.stderr, result.timed_out))
            raise SlurmUnavailableError(f"cannot {doing}: pyslurm's process ended: {said}")
        if "value" in reply:
            return reply["value"]
        text = str(reply.get("error", ""))
        if reply.get("kind") == "missing":
            raise SpecError(
                f"the pyslurm client was chosen, but pyslurm is not installed for {self._python}: {_INSTALL}"
            )
        if reply.get("kind") == "import":
            raise SpecError(f"pyslurm does not fit this machine's Slurm ({text[:200]}): {_INSTALL}")
        if reply.get("kind") == "compound":
            raise _CompoundJobError(text)
        if reply.get("kind") == "worker":
            raise SlurmUnavailableError(f"cannot {doing}: pyslurm answered in a way we do not know: {text[:200]}")
        failed = CommandResult(("pyslurm",), 1, "", text)
        if classify_failure(failed) in fine:
            return None
        raise build_error(failed, doing)


def _reply_of(result: CommandResult) -> dict[str, Any] | None:
    """The worker's line among whatever libslurm printed."""
    for line in reversed(result.stdout.splitlines()):
        if line.startswith(_MARK):
            try:
                reply = json.loads(line.removeprefix(_MARK))
            except ValueError:
                return None
            return reply if isinstance(reply, dict) else None
    return None


def _job_records(row: Mapping[str, str]) -> Iterator[JobRecord]:
    """One record, or one for each task of an array that has not been split off yet."""
    tasks = row.get("waiting_tasks", "")
    for task in expand_nodes(f"t[{tasks}]") if tasks else [""]:
        record = parse.build_job_record({**row, "ArrayTaskID": task.removeprefix("t") or row["ArrayTaskID"]})
        if record is not None:
            yield record
