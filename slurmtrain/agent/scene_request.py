"""What the process that takes a node's scene is asked, by a companion or, where none lives, by the agent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.processes import Process
from slurmtrain.agent.scene_words import Word
from slurmtrain.agent.stacks import find_ranks
from slurmtrain.core.spec import SceneOptions
from slurmtrain.evidence.collector import ENDED
from slurmtrain.evidence.request import Request
from slurmtrain.evidence.scene import Rank

ENDED_S = 20.0  # of Slurm's KillWait (30 s by default): for the scene after TERM


def scene_budget(options: SceneOptions, ending: str) -> float:
    """Seconds for one node's scene after this ending."""
    return min(ENDED_S, options.budget_s) if ending == ENDED else float(options.budget_s)


def make_request(
    job: JobContext,
    attempt: int,
    word: Word,
    node: str,
    processes: Iterable[Process],
    environ: Mapping[str, str],
    *,
    batch_host: bool,
) -> Request:
    """The scene of the word's launch on this node; ``processes`` are those of its ranks that still live here."""
    return Request(
        run_dir=job.run.path,
        node=node,
        ending=word.ending,
        attempt=attempt,
        launch=word.launch,
        job_id=str(job.job_id),
        nodes=job.nodes,
        cause=word.cause,
        batch_host=batch_host,
        budget_s=scene_budget(job.plan.spec.scene, word.ending),
        ranks=tuple(Rank(process.pid, rank) for rank, process in sorted(find_ranks(processes).items())),
        environ=environ,
    )
