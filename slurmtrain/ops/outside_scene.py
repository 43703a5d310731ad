"""The scene of an execution that is gone already: what Slurm and the store still tell, taken beside the decision.

Slurm forgets a finished job after minutes, and a requeued one's record at once. So it is begun before anything is done,
and nobody waits for it: a watcher has other runs.
"""

from __future__ import annotations

import contextlib
from collections import deque

from slurmtrain.core.spec import Spec
from slurmtrain.errors import StoreError
from slurmtrain.evidence.collector import AFTER
from slurmtrain.evidence.frozen import COLLECTORS
from slurmtrain.evidence.keep import launch_numbers
from slurmtrain.evidence.manifest import OUTSIDE, scene_dir
from slurmtrain.evidence.process import SceneProcess
from slurmtrain.evidence.request import Request
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir, RunDir

BUDGET_S = 15.0
MOST_AT_ONCE = 8  # when many jobs fail at once; each asks Slurm a few questions

_RUNNING: deque[SceneProcess] = deque()


def begin_outside(run: RunDir, spec: Spec, attempt: AttemptDir, job_id: str, nodes: str = "") -> bool:
    """Begin it for the newest launch of an attempt that has none yet; whether it was begun. Never raises."""
    while _RUNNING and _RUNNING[0].poll() is not None:
        _RUNNING.popleft()
    if not spec.scene.enabled or len(_RUNNING) >= MOST_AT_ONCE:
        return False
    if not exists(run.agent) or not exists(run.path / COLLECTORS):
        return False
    with contextlib.suppress(OSError, StoreError):
        launch = max(launch_numbers(attempt), default=-1)
        if launch < 0 or exists(scene_dir(attempt.launch(launch)) / OUTSIDE):
            return False
        request = Request(
            run_dir=run.path,
            node=OUTSIDE,
            ending=AFTER,
            attempt=attempt.number,
            launch=launch,
            job_id=job_id,
            nodes=nodes,
            budget_s=min(BUDGET_S, spec.scene.budget_s),
        )
        _RUNNING.append(SceneProcess(run.agent, request))
        return True
    return False
