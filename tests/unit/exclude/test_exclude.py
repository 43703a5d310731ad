"""The list that a job gets, against the Slurm in memory: the user's own stays, ours comes and goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.jobid import JobId
from slurmtrain.core.nodeset import fold_nodes
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Component, Resources, Spec
from slurmtrain.ops.exclude import exclude_for_new_job, join_excluded
from slurmtrain.testing import FaultKind, MemoryConfig, MemorySlurm

DAY = 86400.0


def decided(*nodes: str, at: float = 0.0, number: int = 0) -> ev.Decided:
    decision = Decision(Action.REQUEUE, RunState.PENDING, "gpu_lost", "why", exclude=nodes)
    return ev.Decided(at=at, who="agent", attempt=number, decision=decision_to_dict(decision))


class Queued:
    """A job on a cluster of four nodes, back in the queue."""

    def __init__(self, root: Path, *options: str) -> None:
        self.slurm = MemorySlurm(config=MemoryConfig(uid=os.getuid()))
        script = root / "job.sbatch"
        script.write_text("#!/bin/bash\n#SBATCH -t 60 --requeue\n")
        self.job_id: JobId = self.slurm.submit(script, options=["-N2", *options])
        self.slurm.advance(5)
        self.slurm.requeue(self.job_id, only_running=True)
        self.slurm.advance(3)

    def join(self, run: Run, now: float, **resources: str) -> str | None:
        record = self.slurm.observe([self.job_id]).jobs[self.job_id]
        return join_excluded(self.slurm, record, Spec(("x",), resources=Resources(nodes=2, **resources)), run, now)  # type: ignore[arg-type]


@pytest.fixture
def queued(tmp_path: Path) -> Queued:
    return Queued(tmp_path)


def test_ours_joins_the_users_and_leaves_when_it_is_old(queued: Queued) -> None:
    names = sorted(node.name for node in queued.slurm.nodes())
    assert len(names) >= 4
    bad, theirs = names[0], names[1]
    queued.slurm.update_pending(queued.job_id, exclude=theirs)
    run = fold([decided(bad)])
    both = queued.join(run, 10)
    assert both is not None
    queued.slurm.update_pending(queued.job_id, exclude=both)
    assert set(queued.slurm.expand_nodes(queued.slurm.excluded_nodes(queued.job_id))) == {bad, theirs}
    assert queued.join(run, 20) is None, "nothing to change"
    assert queued.join(run, 2 * DAY) == theirs, "a day later ours is gone, the user's stays"


def test_nothing_is_asked_where_nothing_was_ever_avoided(queued: Queued) -> None:
    before = len(queued.slurm.calls)
    assert queued.join(fold([decided()]), 10) is None
    assert [call.name for call in queued.slurm.calls[before:]] == ["observe"]


def test_without_an_answer_the_list_stays(queued: Queued) -> None:
    name = queued.slurm.nodes()[0].name
    queued.slurm.inject(FaultKind.UNAVAILABLE, "nodes")
    assert queued.join(fold([decided(name)]), 10) is None


def test_a_new_job_gets_the_list_and_no_more_than_can_be_spared(queued: Queued) -> None:
    names = sorted(node.name for node in queued.slurm.nodes())
    run = fold([decided(names[0], number=0), decided(names[1], at=5, number=1)])
    one = Spec(("x",), resources=Resources(nodes=len(names) - 1))
    assert exclude_for_new_job(queued.slurm, one, run, 10) == names[1], "the newest evidence counts first"
    every = Spec(("x",), resources=Resources(nodes=len(names)))
    assert exclude_for_new_job(queued.slurm, every, run, 10) is None
    named = Spec(("x",), resources=Resources(nodes=1, nodelist=names[1]))
    assert exclude_for_new_job(queued.slurm, named, run, 10) == names[0]


def test_as_many_nodes_stay_as_fit_the_constraint(queued: Queued) -> None:
    """Four nodes, two of which have the GPUs that the job asks for: neither can be spared, any other can."""
    names = sorted(node.name for node in queued.slurm.nodes())
    for name in names[:2]:
        queued.slurm.controller.nodes[name].features = frozenset({"h100"})
    bad = fold([decided(names[0], names[3])])
    assert queued.join(bad, 10, constraint="h100") == names[3]
    assert queued.join(bad, 10) == fold_nodes([names[0], names[3]])
    one = Spec(("x",), resources=Resources(nodes=1, constraint="h100"))
    assert exclude_for_new_job(queued.slurm, one, bad, 10) == fold_nodes([names[0], names[3]])
    assert exclude_for_new_job(queued.slurm, one, fold([decided(*names[:2])]), 10) == names[0]


def test_each_component_keeps_what_it_asks_for(queued: Queued) -> None:
    names = sorted(node.name for node in queued.slurm.nodes())
    queued.slurm.controller.nodes[names[3]].features = frozenset({"big"})
    job = Spec(("x",), resources=Resources(nodes=2), components=(Component(nodes=1, constraint="big"),))
    bad = fold([decided(names[3]), decided(names[0], at=5, number=1)])
    assert exclude_for_new_job(queued.slurm, job, bad, 10) == names[0]
