"""A stage: a Slurm, real or in memory, with hands for what only a test does (end a script, lose a node, wait)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar

from slurmtrain.core.jobid import JobId
from slurmtrain.slurm.client import JobRecord, SlurmClient
from slurmtrain.testing.memory_model import Behaviour, MemoryConfig
from slurmtrain.testing.memory_slurm import MemorySlurm

T = TypeVar("T")
OBEDIENT = Behaviour()

QUICK = MemoryConfig(
    min_job_age=timedelta(seconds=30), kill_wait=timedelta(seconds=5), cred_expire=timedelta(seconds=5)
)  # the timers of `docker/mini-slurm --timers quick`


class Stage(Protocol):
    """What the contract suite and the recorded scenarios need. Nodes are free, partitions as mini-slurm has them."""

    @property
    def client(self) -> SlurmClient: ...

    @property
    def nodes(self) -> Sequence[str]: ...

    def partition(self, kind: str) -> str:
        """The partition of this kind: ``batch``, ``graced`` or ``urgent``."""
        ...

    def submit(self, *options: str, behaviour: Behaviour = OBEDIENT) -> JobId:
        """Submit a job of one task whose script behaves so."""
        ...

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        """The running script of this job (not an array) ends by itself."""
        ...

    def cancel_as_root(self, job_id: JobId) -> None: ...

    def fail_node(self, name: str) -> None: ...

    def drain_node(self, name: str) -> None: ...

    def restore_node(self, name: str) -> None: ...

    def pause(self, seconds: float) -> None:
        """Let time pass."""
        ...


def wait_for(stage: Stage, condition: Callable[[], T | None], timeout_s: float, what: str) -> T:
    """The first true value of ``condition`` while time passes on the stage."""
    value = condition()
    waited = 0.0
    while not value:
        if waited >= timeout_s:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        stage.pause(0.2)
        waited += 0.2
        value = condition()
    return value


def wait_for_job(
    stage: Stage, job_id: JobId, condition: Callable[[JobRecord], bool], what: str, timeout_s: float = 40
) -> JobRecord:
    """The job's record as soon as it meets ``condition``."""

    def look() -> JobRecord | None:
        record = stage.client.observe([job_id]).jobs.get(job_id)
        return record if record is not None and condition(record) else None

    return wait_for(stage, look, timeout_s, f"job {job_id} {what}")


class MemoryStage:
    """A stage in memory, with mini-slurm's quick timers."""

    def __init__(self, config: MemoryConfig = QUICK, directory: Path | None = None) -> None:
        self.client = MemorySlurm(config=config)
        self.nodes: Sequence[str] = list(self.client.controller.nodes)
        self._directory = directory or Path(tempfile.mkdtemp(prefix="memory-stage-"))

    def partition(self, kind: str) -> str:
        return kind

    def submit(self, *options: str, behaviour: Behaviour = OBEDIENT) -> JobId:
        script = self._directory / "job.sh"
        script.write_text("#!/bin/bash\n", encoding="utf-8")
        self.client.behaviour = behaviour
        return self.client.submit(script, options=options)

    def finish(self, job_id: JobId, exit_code: int = 0, signal: int = 0) -> None:
        self.client.finish(job_id, exit_code, signal)

    def cancel_as_root(self, job_id: JobId) -> None:
        self.client.cancel_as(job_id, 0)

    def fail_node(self, name: str) -> None:
        self.client.fail_node(name)

    def drain_node(self, name: str) -> None:
        self.client.drain_node(name)

    def restore_node(self, name: str) -> None:
        self.client.restore_node(name)

    def pause(self, seconds: float) -> None:
        self.client.advance(seconds)
