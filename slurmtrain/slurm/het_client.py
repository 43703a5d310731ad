"""Slurm seen from inside a heterogeneous job: a step of it has a part in each component.

``squeue -s -j LEADER`` lists the leader's part only, and a signal to ``LEADER.0`` reaches the leader's tasks only
(22.05, tried); everything else that is said of the leader (requeue, update, cancel) goes for all components.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurmtrain.core.jobid import JobId
from slurmtrain.errors import JobNotFoundError
from slurmtrain.hosts.local import LocalHost
from slurmtrain.slurm.cli_client import CliSlurmClient


class HetSlurmClient(CliSlurmClient):
    """``components`` are the numbers that Slurm gave to the parts, the leader's first."""

    def __init__(self, host: LocalHost, components: Sequence[JobId]) -> None:
        super().__init__(host)
        self._components = tuple(components)

    def steps(self, job_id: JobId) -> list[str]:
        found: dict[str, None] = {}
        for component in self._components:
            found.update(dict.fromkeys(super().steps(component)))
        return list(found)

    def signal_step(self, job_id: JobId, step: int | str, signal_name: str) -> None:
        """Raises ``JobNotFoundError`` only where no component has the step any more."""
        gone: JobNotFoundError | None = None
        reached = False
        for component in self._components:
            try:
                super().signal_step(component, step, signal_name)
                reached = True
            except JobNotFoundError as exc:
                gone = exc
        if gone is not None and not reached:
            raise gone
