"""The agent's side of the companions: one srun that starts them on all nodes, and word to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.slurm.commands import build_companion_srun
from slurmtrain.store.rundir import AttemptDir


class CompanionStep:
    """The step of the companions. A training never fails because they could not start."""

    def __init__(self, job: JobContext, attempt: AttemptDir, env: Mapping[str, str]) -> None:
        self._job = job
        self._attempt = attempt
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-I", str(self._job.run.agent), "companion", str(self._job.run.path)]
        argv = build_companion_srun(
            int(self._env.get("SLURM_JOB_NUM_NODES", "1")), [*command, str(self._attempt.number)]
        )
        env = {**self._env, "SLURMTRAIN_AGENT": f"{os.getpid()}@{self._job.host}"}
        for name in [name for name in env if name.startswith("SLURM_CPU_BIND") or name == "SLURM_NTASKS"]:
            del env[name]
        try:
            with (self._attempt.path / "companion.log").open("ab") as log:  # srun talks; the training's log is not its
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
                )
        except OSError as exc:
            say(f"the companions cannot be started ({exc}); the training goes on without them")

    def ask_to_stop(self) -> None:
        """USR2 to srun reaches every companion; they hand the stop signal to the ranks."""
        self._signal(signal.SIGUSR2)

    def end(self) -> None:
        """TERM to srun ends its tasks at once: companions never delay the end of the job."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)
