"""The agent's side of shipping: a process of the submitter's own slurmtrain beside the training, on the batch host.

fsspec is no part of the frozen agent, so the slurmtrain that submitted is called. Where a node cannot see it, the
watcher ships from its own host, or ``slurmtrain ship``. A training never fails or waits because of it; only the end of
an attempt that is not requeued may wait for ``ship.linger_s`` seconds.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.core.decision import Action
from slurmtrain.errors import StoreError
from slurmtrain.ops.shipping.known import remember_secrets
from slurmtrain.ops.shipping.start import ERRORS, LEASE, start_beside_training
from slurmtrain.store.lease import forget
from slurmtrain.store.rundir import AttemptDir

_LOOK_S = 10.0
_MAX_STARTS = 3


class ShipperProcess:
    """The shipper of this attempt, if the run has one."""

    def __init__(self, job: JobContext, attempt: AttemptDir, env: Mapping[str, str]) -> None:
        self._job = job
        self._attempt = attempt
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._next_look = 0.0
        self._given_up = not job.plan.spec.ship.url

    def ensure_running(self) -> None:
        """Start it; again where it was killed, but not for ever. Cheap to call often."""
        if self._given_up or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        if self._process is None:
            self._start()
        elif (code := self._process.poll()) is not None:
            if code >= 0 or self._starts >= _MAX_STARTS:
                self._give_up(self._read_error() or f"it ended with code {code}")
            else:
                self._start()

    def end(self) -> None:
        """Ask it for a last pass and wait a bounded time for it; not before a requeue: the next attempt ships."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        if not self._is_requeued():
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._job.plan.spec.ship.linger_s)
        if process.poll() is None:
            process.kill()
            with contextlib.suppress(StoreError):
                forget(self._job.run.ship / LEASE, process.pid)

    def _is_requeued(self) -> bool:
        try:
            return (self._attempt.read_decision() or {}).get("action") == Action.REQUEUE.value
        except StoreError:
            return False

    def _start(self) -> None:
        self._starts += 1
        program = self._job.plan.data.get("ship_program")
        if not isinstance(program, list) or not all(isinstance(word, str) for word in program):
            self._give_up("it is not known which slurmtrain submitted")
            return
        try:
            self._job.run.ship.mkdir(exist_ok=True)
            remember_secrets(self._job.run.ship, {**self._env, **self._job.plan.spec.environment.variables})
            self._process = start_beside_training(program, self._job.run.path, self._env)
        except (StoreError, OSError) as exc:
            self._give_up(str(exc))
            return
        if self._process is None:
            self._give_up(f"{program[0]} cannot be started on this node")

    def _read_error(self) -> str:
        try:
            with (self._job.run.ship / ERRORS).open("rb") as stream:
                lines = stream.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return "".join(char for char in lines[-1] if char.isprintable())[:300] if lines else ""

    def _give_up(self, why: str) -> None:
        self._given_up = True
        say(f"nothing is shipped from this node: {why}; `slurmtrain watch` ships, or `slurmtrain ship` by hand")
