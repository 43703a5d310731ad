"""Starting the training and ending it in bounded steps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from slurmtrain.agent.beats import BEATS, beats_folder
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.measure import count_oom_kills
from slurmtrain.agent.processes import end_processes, find_launch_processes
from slurmtrain.checkpoints.find import checkpoint_dir
from slurmtrain.core.jobid import JobId
from slurmtrain.core.spec import has_node_logs
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.rundir import HEARTBEAT, AttemptDir, find_node_logs

_PORT_BASE, _PORT_SPAN = 20000, 12000  # below Linux's ephemeral ports (32768…)
_PORT_TRIES, _PORT_STRIDE = 50, 101  # not the next one: that is the next launch's
_KILL_WAIT_S = 15.0


class Srun(Protocol):
    """What is asked of a launch's process."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...


@dataclass(frozen=True)
class EndedSrun:
    """srun of a launch whose agent has died: it is gone, and ended with this exit code."""

    code: int
    pid: int = -1

    def poll(self) -> int:
        return self.code

    def kill(self) -> None:
        return None


@dataclass
class LaunchProcess:
    """A running launch: ``process`` is srun itself, because launch.sh ends in ``exec srun``."""

    number: int
    process: Srun
    log_file: Path
    log_offset: int
    started_at: float
    folder: Path | None = None  # the launch's own, where ranks may leave error files
    oom_kills_before: int | None = None
    unheard: str = ""  # why nobody will ever hear how it ended, where that is so
    log_cut: int | None = None  # what srun says after we began to end the launch tells nothing about its cause
    environ: Mapping[str, str] = field(default_factory=dict)  # what its ranks were given, as far as we know
    silent_s: float | None = None  # it was ended because nothing was heard of it for so long
    nothing_new: str = "sign of life"  # or "step": what was missing
    per_node: bool = False  # the ranks of each node write a log of their own
    node_cuts: dict[str, int] = field(default_factory=dict)  # as ``log_cut``, of the nodes' logs by name
    log_is_full: bool = False  # its file system has no room now
    log_was_full: bool = False  # since then srun may write nothing more, until the launch ends

    def poll(self) -> int | None:
        """Exit code (128+n for a signal) once srun is gone."""
        code = self.process.poll()
        if code is None:
            return None
        return 128 - code if code < 0 else code

    @property
    def was_killed(self) -> bool:
        """srun itself was ended by a signal: then its step may live on."""
        return (self.process.poll() or 0) < 0

    def log_end(self) -> int:
        return _size(self.log_file) if self.log_cut is None else self.log_cut

    def node_logs(self) -> list[Path]:
        """The nodes' own logs, those that exist by now."""
        return find_node_logs(self.folder) if self.per_node and self.folder is not None else []

    def step_log(self) -> tuple[Path, int]:
        """Where rank 0 tells its steps, and the first byte of this launch there."""
        if self.per_node and self.folder is not None:
            return self.folder / "node-0.log", 0
        return self.log_file, self.log_offset

    def sizes(self) -> list[int]:
        """Bytes in the job's log and in those of the nodes, those written after the cut too."""
        return [_size(self.log_file), *(_size(path) for path in self.node_logs())]

    def cut_log(self) -> None:
        """We begin to end the launch: what comes from here on does not tell why."""
        self.log_cut = self.log_end()
        self.node_cuts = {path.name: _size(path) for path in self.node_logs()}


def start_launch(
    job: JobContext, attempt: AttemptDir, number: int, resume_from: Path | None, env: Mapping[str, str]
) -> LaunchProcess:
    """Start ``launch.sh``; its output goes where the batch script's goes: one writer, nothing is overwritten.

    Raises ``SlurmtrainError`` where no process can be started.
    """
    with contextlib.suppress(OSError):
        attempt.launch(number).mkdir(mode=0o755, parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        checkpoint_dir(job.run.path, job.plan.spec.checkpoint).mkdir(mode=0o755, parents=True, exist_ok=True)
    offset, kills = _size(job.log_file), count_oom_kills()
    environ = launch_environment(job, attempt, number, resume_from, env)
    try:
        process = subprocess.Popen(
            ["/bin/bash", str(job.run.launch_script)],
            stdin=subprocess.DEVNULL,
            env=environ,
            restore_signals=True,
        )
    except OSError as exc:
        raise SlurmtrainError(f"cannot start {job.run.launch_script}: {exc.strerror or exc}") from exc
    return LaunchProcess(
        number, process, job.log_file, offset, time.time(), attempt.launch(number), kills,
        environ=environ, per_node=has_node_logs(job.plan.spec),
    )  # fmt: skip


def launch_environment(
    job: JobContext, attempt: AttemptDir, number: int, resume_from: Path | None, env: Mapping[str, str]
) -> dict[str, str]:
    """The batch script's environment and what the training may want to know."""
    watched = job.plan.spec.companion  # who would read the ranks' own heartbeats, and remove them
    values = {
        "SLURMTRAIN_RUN_ID": job.run.run_id,
        "SLURMTRAIN_RUN_DIR": str(job.run.path),
        "SLURMTRAIN_ATTEMPT": str(attempt.number),
        "SLURMTRAIN_LAUNCH": str(number),
        "SLURMTRAIN_LAUNCH_DIR": str(attempt.launch(number)),
        "SLURMTRAIN_LAUNCH_KEY": f"{attempt.number}.{number}",
        "SLURMTRAIN_CHECKPOINT_DIR": str(checkpoint_dir(job.run.path, job.plan.spec.checkpoint)),
        "SLURMTRAIN_RESUME_FROM": str(resume_from) if resume_from else "",
        "SLURMTRAIN_HEARTBEAT": str(attempt.launch(number) / HEARTBEAT),
        BEATS: str(beats_folder(env.get("SLURM_JOB_ID", ""), f"{attempt.number}.{number}")) if watched else "",
        "SLURMTRAIN_STOP_FILE": str(attempt.stop_file),
        "SLURMTRAIN_DONE_FILE": str(job.run.done_file),
        "SLURMTRAIN_PRIMARY_DONE": str(attempt.launch(number) / "primary-done"),
        "SLURMTRAIN_MASTER_PORT": str(find_free_port(rendezvous_port(job.job_id, attempt.number, number))),
    }
    return {**env, **values}


def rendezvous_port(job_id: JobId, attempt: int, launch: int) -> int:
    """A new port for each launch, so that a straggler of the one before cannot join."""
    task = job_id.array_task or job_id.het_offset or 0
    return _PORT_BASE + (job_id.base * 131 + task * 17 + attempt * 7 + launch) % _PORT_SPAN


def find_free_port(first: int) -> int:
    """The first port from this one on that nothing on this host has taken; the ranks meet on the batch host.

    A shared node has other jobs, and a port that this very job used may still be closing.
    """
    for step in range(0, _PORT_TRIES * _PORT_STRIDE, _PORT_STRIDE):
        port = _PORT_BASE + (first - _PORT_BASE + step) % _PORT_SPAN
        try:
            with socket.socket(socket.AF_INET) as probe:
                probe.bind(("", port))
        except OSError:
            continue
        return port
    return first


def end_launch(launch: LaunchProcess, job_id: JobId, step: str | None, slurm: SlurmClient, grace_s: float) -> int:
    """End a launch: TERM to the ranks, grace, KILL, then srun itself. Returns its exit code; each step is bounded."""
    if step is not None:
        with contextlib.suppress(SlurmtrainError):
            slurm.signal_step(job_id, step, "TERM")
        if (code := _wait(launch, grace_s)) is not None:
            return code
        with contextlib.suppress(SlurmtrainError):
            slurm.signal_step(job_id, step, "KILL")
        if (code := _wait(launch, _KILL_WAIT_S)) is not None:
            return code
    for number in (signal.SIGTERM, signal.SIGKILL):  # TERM makes srun kill its tasks at once
        with contextlib.suppress(ProcessLookupError):
            os.kill(launch.process.pid, number)
        if (code := _wait(launch, _KILL_WAIT_S)) is not None:
            return code
    return 128 + int(signal.SIGKILL)


def kill_launch(launch: LaunchProcess, raw_job_id: str, attempt: int) -> int:
    """KILL what runs on this node, by pid, without a word to Slurm: its job id may belong to a later execution."""
    launch.process.kill()  # does nothing where it has ended: its pid may be another's by now
    end_processes(find_launch_processes(raw_job_id, attempt), signal.SIGKILL)
    _wait(launch, _KILL_WAIT_S)
    return 128 + int(signal.SIGKILL)


def _wait(launch: LaunchProcess, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while (code := launch.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return code


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
