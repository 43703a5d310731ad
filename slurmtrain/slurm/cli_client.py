"""SlurmClient over Slurm's own commands: works with every Slurm, here or on another host."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import StateFlag
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.errors import JobNotFoundError, SlurmtrainError, SlurmUnavailableError
from slurmtrain.hosts.local import CommandResult, Host
from slurmtrain.slurm import commands, parse
from slurmtrain.slurm.client import AccountingRecord, Capabilities, JobRecord, NodeRecord, ReservationRecord, Snapshot
from slurmtrain.slurm.environment import query_environment, submit_environment
from slurmtrain.slurm.failures import Failure, build_error, classify_failure

# A hung slurmctld makes scontrol wait 2 × MessageTimeout (10 s), a hung slurmdbd sacct 45 s; sbatch itself retries for
# two minutes where the controller is full. Never shorter: an act that we end by force may have happened.
QUERY_TIMEOUT_S = 60.0
HISTORY_TIMEOUT_S = 120.0
ACT_TIMEOUT_S = 60.0
SUBMIT_TIMEOUT_S = 180.0
_IDS_PER_SACCT = 2000  # an argument may have 128 KiB


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


class CliSlurmClient:
    """One cluster, asked through ``host``. Safe to share between threads; holds nothing but the capabilities.

    ``environ`` is the environment of the commands (default: this process's); what Slurm would read as options is
    removed from it.
    """

    def __init__(
        self, host: Host, *, environ: Mapping[str, str] | None = None, now: Callable[[], datetime] = _utc_now
    ) -> None:
        self._host = host
        self._environ = dict(os.environ if environ is None else environ)
        self._query_environ = query_environment(self._environ)
        self._now = now
        self._capabilities: Capabilities | None = None
        self._lock = threading.Lock()

    # -- submitting --------------------------------------------------------------------------------------------------

    def submit(
        self,
        script: Path,
        *,
        options: Sequence[str] = (),
        arguments: Sequence[str] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> JobId:
        result = self._sbatch(commands.build_sbatch(script, options, arguments), cwd, env)
        job_id = parse.parse_submitted(result.stdout)
        if job_id is not None:  # whatever else it said, the job exists
            return job_id
        if result.exit_code == 0:
            raise SlurmUnavailableError(f"cannot tell whether {script} was submitted: sbatch answered no job id")
        raise build_error(result, f"submit {script}")

    def check_submit(self, script: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
        result = self._sbatch(commands.build_sbatch_test(script), cwd, env)
        if result.exit_code != 0:
            raise build_error(result, f"submit {script}")
        said = [line.removeprefix("sbatch: ").strip() for line in f"{result.stderr}\n{result.stdout}".splitlines()]
        return "; ".join(line for line in said if line)[:400]

    def _sbatch(self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None) -> CommandResult:
        environ = submit_environment(self._environ, env)
        return self._host.run(argv, timeout_s=SUBMIT_TIMEOUT_S, env=environ, cwd=cwd)

    # -- looking -----------------------------------------------------------------------------------------------------

    def observe(self, job_ids: Collection[JobId] | None = None) -> Snapshot:
        taken_at = self._now()
        if job_ids is not None and not job_ids:
            return Snapshot(taken_at)
        started = time.monotonic()
        records = self._squeue(job_ids)
        latency = timedelta(seconds=time.monotonic() - started)
        if job_ids is not None:
            records = [record for record in records if parse.is_wanted(record.job_id, job_ids)]
        records = parse.join_components(records)
        return Snapshot(taken_at, {record.job_id: record for record in records}, latency)

    def _squeue(self, job_ids: Collection[JobId] | None) -> list[JobRecord]:
        if job_ids is not None and len(job_ids) == 1:
            argv = commands.build_squeue(next(iter(job_ids)))
        elif job_ids is not None and os.geteuid() == 0:
            argv = commands.build_squeue_all(job_ids)  # --me would hide the users' jobs from root
        else:
            argv = commands.build_squeue()
        try:
            records = parse.parse_squeue(self._query(argv, "ask Slurm for its jobs").stdout)
        except JobNotFoundError:
            return []
        if job_ids is None or not any(StateFlag.REVOKED in record.state.flags for record in records):
            return records
        # In a federation `squeue -j` shows the row of the cluster of the submission, a list of jobs where each runs.
        argv = commands.build_squeue_all() if os.geteuid() == 0 else commands.build_squeue()
        return parse.parse_squeue(self._query(argv, "ask Slurm for its jobs").stdout) or records

    def history(self, job_ids: Collection[JobId], *, since: datetime | None = None) -> list[AccountingRecord]:
        records = self._sacct(sorted(job_ids), since)
        # A task that never started has no row of its own: one row stands for all of its array that did not.
        found = {record.job_id for record in records}
        arrays = {JobId(one.base) for one in job_ids if one.array_task is not None and one not in found}
        records += [record for record in self._sacct(sorted(arrays), since) if record.job_id not in found]
        return [record for record in records if parse.is_wanted(record.job_id, job_ids)]

    def _sacct(self, job_ids: Sequence[JobId], since: datetime | None) -> list[AccountingRecord]:
        records: list[AccountingRecord] = []
        remaining = iter(job_ids)
        while chunk := list(islice(remaining, _IDS_PER_SACCT)):
            result = self._run(commands.build_sacct(chunk, since), HISTORY_TIMEOUT_S)
            if "|REVOKED|" in result.stdout:  # another cluster of a federation has what became of it
                result = self._run(commands.build_sacct(chunk, since, federation=True), HISTORY_TIMEOUT_S)
            if result.exit_code != 0:
                if classify_failure(result) is Failure.NO_ACCOUNTING:
                    return []
                raise self._query_error(result, "ask Slurm's accounting")
            records += parse.parse_sacct(result.stdout)
        return records

    def excluded_nodes(self, job_id: JobId) -> str:
        lines = self._query(commands.build_squeue_excluded(job_id), f"look at job {job_id}").stdout.split()
        return next((line for line in lines if line != "(null)"), "")

    def steps(self, job_id: JobId) -> list[str]:
        try:
            return parse.parse_steps(self._query(commands.build_squeue_steps(job_id), f"look at job {job_id}").stdout)
        except JobNotFoundError:
            return []

    def nodes(self, expression: str = "") -> list[NodeRecord]:
        return parse.parse_sinfo(self._query(commands.build_sinfo(expression), "ask Slurm for its nodes").stdout)

    def reservations(self) -> list[ReservationRecord]:
        answer = self._query(commands.build_reservations(), "ask Slurm for its reservations").stdout
        return parse.parse_reservations(answer)

    def expand_nodes(self, expression: str) -> list[str]:
        return expand_nodes(expression)

    def capabilities(self) -> Capabilities:
        with self._lock:
            if self._capabilities is None:
                answer = self._query(commands.build_config(), "ask Slurm for its configuration").stdout
                try:
                    self._capabilities = parse.parse_config(answer)
                except ValueError as exc:
                    raise SlurmUnavailableError(f"cannot read Slurm's configuration: {exc}") from exc
            return self._capabilities

    # -- acting ------------------------------------------------------------------------------------------------------

    def requeue(self, job_id: JobId, *, only_running: bool) -> None:
        self._act(
            commands.build_requeue(job_id, only_running=only_running),
            f"requeue job {job_id}",
            fine=(Failure.ALREADY_PENDING,),
        )

    def update_pending(
        self,
        job_id: JobId,
        *,
        start_after: timedelta | None = None,
        start_at: datetime | None = None,
        exclude: str | None = None,
    ) -> None:
        if start_after is None and start_at is None and exclude is None:
            return
        argv = commands.build_update(job_id, start_after=start_after, start_at=start_at, exclude=exclude)
        self._act(argv, f"change pending job {job_id}")

    def hold(self, job_id: JobId) -> None:
        self._act(commands.build_hold(job_id), f"hold job {job_id}")

    def release(self, job_id: JobId) -> None:
        self._act(commands.build_release(job_id), f"release job {job_id}")

    def cancel(self, job_id: JobId) -> None:
        self._act(commands.build_cancel(job_id), f"cancel job {job_id}", fine=(Failure.JOB_UNKNOWN, Failure.JOB_ENDED))

    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        doing = f"send {signal_name} to step {job_id}.{step}"
        result = self._run(commands.build_signal_step(job_id, step, signal_name), ACT_TIMEOUT_S)
        if result.exit_code != 0:
            if classify_failure(result) is Failure.JOB_ENDED:
                raise JobNotFoundError(f"cannot {doing}: it has ended")
            raise build_error(result, doing)

    # -- running -----------------------------------------------------------------------------------------------------

    def _run(self, argv: Sequence[str], timeout_s: float) -> CommandResult:
        return self._host.run(argv, timeout_s=timeout_s, env=self._query_environ)

    def _query(self, argv: Sequence[str], doing: str) -> CommandResult:
        result = self._run(argv, QUERY_TIMEOUT_S)
        if result.exit_code != 0:
            raise self._query_error(result, doing)
        return result

    @staticmethod
    def _query_error(result: CommandResult, doing: str) -> SlurmtrainError:
        """A question that failed for a reason we do not know has taught us nothing."""
        if classify_failure(result) is Failure.UNKNOWN:
            return SlurmUnavailableError(str(build_error(result, doing)))
        return build_error(result, doing)

    def _act(self, argv: Sequence[str], doing: str, fine: Collection[Failure] = ()) -> None:
        result = self._run(argv, ACT_TIMEOUT_S)
        if result.exit_code != 0 and classify_failure(result) not in fine:
            raise build_error(result, doing)
