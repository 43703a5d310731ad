"""The watcher as a small job of its own, for sites without cron and without processes on login nodes.

One CPU, half a GiB. Before its time limit it requeues itself under the same job id, so that one ``scancel`` ends it for
good at any time; it ends by itself when no run is left. ``--dependency=singleton`` and the lease keep two from watching
one store.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import is_terminal
from slurmtrain.core.spec import parse_time_limit
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.render.quoting import escape_file_pattern, quote_argv, quote_directive
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.store.publish import read_json, replace, to_json
from slurmtrain.watch.loop import Pass, Watcher
from slurmtrain.watch.units import Installation

TIME_LIMIT = "1-00:00:00"
_IDLE_LOOKS = 2  # a run that is being submitted may not be there yet
_START_AFTER = timedelta(seconds=8)
_CONFIRM_TRIES = 10


def build_job_script(
    installed: Installation, interval_s: float, time_limit: str = TIME_LIMIT, options: Sequence[str] = ()
) -> str:
    """The batch script; ``options`` are further directives like ``--partition=cpu``."""
    store = str(installed.store)
    command = [*installed.program, "watch", "--in-job", "--interval", f"{interval_s:g}", "--store", store]
    directives = [
        f"--job-name=slurmtrain-watch-{zlib.crc32(store.encode()):08x}",  # one name for each store: see singleton
        "--dependency=singleton",
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=1",
        "--mem=512M",
        f"--time={quote_directive(time_limit)}",
        f"--signal=B:USR2@{lead_s(time_limit)}",
        "--requeue",
        "--open-mode=append",
        f"--chdir={quote_directive(store)}",
        f"--output={quote_directive(escape_file_pattern(store) + '/watch/job-%j.log')}",
        *options,
    ]
    lines = [
        "#!/bin/bash",
        "# slurmtrain: looks after the runs of one store. scancel ends it for good.",
        *(f"#SBATCH {directive}" for directive in directives),
        "trap '' USR2 # until the watcher listens to it",
        f"exec {quote_argv(command)}",
    ]
    return "\n".join(lines) + "\n"


def lead_s(time_limit: str) -> int:
    """How long before the time limit the watcher makes room for its next execution."""
    limit = parse_time_limit(time_limit)
    return 120 if limit is None else max(10, min(120, limit // 5))


def find_watching_job(store: Path, slurm: SlurmClient) -> JobId | None:
    """The watcher job of a store that Slurm still has in its hands. Raises ``SlurmUnavailableError``."""
    try:
        job_id = parse_job_id(str((read_json(_record(store)) or {}).get("job_id", "")))
    except ValueError:
        return None
    record = slurm.observe([job_id]).jobs.get(job_id)
    return job_id if record is not None and not is_terminal(record.state, requeue=record.requeue) else None


def submit_watcher(store: Path, script: str, slurm: SlurmClient) -> JobId:
    """Write the script beside the runs and hand it to Slurm."""
    folder = store / "watch"
    path = folder / "job.sbatch"
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o700)
    except OSError as exc:
        raise StoreError(f"cannot write {path}: {exc.strerror or exc}") from exc
    job_id = slurm.submit(path)
    replace(_record(store), to_json({"job_id": str(job_id), "at": time.time()}))
    return job_id


def _record(store: Path) -> Path:
    return store / "watch" / "job.json"


@dataclass
class JobWatch:
    """The watcher inside its job: how it ends, and that it comes back."""

    watcher: Watcher
    slurm: SlurmClient
    job_id: JobId
    say: Callable[[str], None]
    now: Callable[[], float] = field(default=time.time)

    def __post_init__(self) -> None:
        self._idle = 0
        self._renew = False
        self._end: float | None = None
        self._lead = 120.0

    def warn(self) -> None:
        """Slurm's warning before the time limit; from a signal handler."""
        self._renew = True
        self.watcher.stop()

    def run(self) -> None:
        """Watch until told to end, until the time limit is near, or until no run is left."""
        record = self._look()
        if record is not None and record.end_time is not None:
            self._end = record.end_time.timestamp()
            self._lead = min(self._lead, max(10.0, (self._end - self.now()) / 5))
        self.watcher.run(self._after_look)
        if self._renew:
            self._come_back()

    def _after_look(self, result: Pass) -> None:
        if self._end is not None and self.now() >= self._end - self._lead:
            self.warn()
            return
        left = result.runs if not result.held_by else self.watcher.count_runs()
        self._idle = 0 if left or result.unknown else self._idle + 1
        if self._idle >= _IDLE_LOOKS:
            self.say("no run is left to look after: this job ends; `slurmtrain watch --as-job` starts another one")
            self.watcher.stop()

    def _come_back(self) -> None:
        """Requeue this job, which a person may have cancelled in the same moment: then it stays cancelled."""
        record = self._look()
        before = record.restart_count if record is not None else 0
        try:
            self.slurm.requeue(self.job_id, only_running=True)
        except SlurmtrainError as exc:
            self._submit_successor(exc)
            return
        for _ in range(_CONFIRM_TRIES):
            seen = self._look()
            if seen is not None and seen.restart_count > before:
                with contextlib.suppress(SlurmtrainError):
                    self.slurm.update_pending(self.job_id, start_after=_START_AFTER)
                self.say("the time limit is near: this job was requeued and goes on in a moment")
                return
            time.sleep(0.3)
        self.say("the time limit is near, and Slurm did not requeue this job: it was cancelled")

    def _submit_successor(self, exc: SlurmtrainError) -> None:
        """Where the site allows no requeue; ``singleton`` lets it start when this job has ended."""
        script = self.watcher.store / "watch" / "job.sbatch"
        try:
            job_id = self.slurm.submit(script)
            replace(_record(self.watcher.store), to_json({"job_id": str(job_id), "at": time.time()}))
            self.say(f"the time limit is near: job {job_id} takes over ({exc})")
        except SlurmtrainError as again:
            self.say(f"the time limit is near, and nobody takes over: {again}")

    def _look(self) -> JobRecord | None:
        try:
            return self.slurm.observe([self.job_id]).jobs.get(self.job_id)
        except SlurmtrainError:
            return None


def own_job_id() -> JobId | None:
    """The job that this process is in."""
    try:
        return parse_job_id(os.environ.get("SLURM_JOB_ID", ""))
    except ValueError:
        return None
