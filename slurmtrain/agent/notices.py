"""What a person wants to know of a running launch, and nothing is done about: slow ranks, old checkpoints."""

from __future__ import annotations

from slurmtrain.agent.age import AgeWatch
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.record import Record
from slurmtrain.agent.stragglers import StragglerWatch
from slurmtrain.core.spec import all_components
from slurmtrain.store.rundir import AttemptDir


class Notices:
    """Of one launch."""

    def __init__(self, job: JobContext, attempt: AttemptDir, launch: int, record: Record) -> None:
        spec = job.plan.spec
        self._age = AgeWatch(job.run, spec.checkpoint, launch, record)
        nodes = sum(part.nodes for part in all_components(spec))
        self._stragglers = StragglerWatch(attempt, launch, nodes, record) if spec.companion else None

    def look(self) -> None:
        """Cheap: each looks now and then."""
        self._age.look()
        if self._stragglers is not None:
            self._stragglers.look()
