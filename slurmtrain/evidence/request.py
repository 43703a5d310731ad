"""What the process that takes a node's scene is asked, as JSON on its input: it needs no file to begin."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.find import checkpoint_dir
from slurmtrain.checkpoints.pin import pin_newest
from slurmtrain.core.events import LaunchStarted
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.evidence.collector import AFTER, FAILED, HUNG
from slurmtrain.evidence.frozen import read_frozen_collectors
from slurmtrain.evidence.keep import thin_scenes
from slurmtrain.evidence.manifest import NodeScene
from slurmtrain.evidence.scene import Rank, Scene
from slurmtrain.evidence.take import take_scene
from slurmtrain.store.journal import read_journal
from slurmtrain.store.rundir import Plan, RunDir

_RESERVE_S = 2.0  # of the budget, for starting, killing and tidying


@dataclass(frozen=True, slots=True)
class Request:
    """One node's scene of one launch. ``environ`` is the launch's, as far as it is known."""

    run_dir: Path
    node: str
    ending: str
    attempt: int
    launch: int
    job_id: str = ""
    nodes: str = ""
    cause: str = ""
    batch_host: bool = False
    budget_s: float = 0.0  # 0: as the job file says
    ranks: tuple[Rank, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> bytes:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        data |= {"run_dir": str(self.run_dir), "ranks": [dataclasses.asdict(rank) for rank in self.ranks]}
        return json.dumps({**data, "environ": dict(self.environ)}).encode("utf-8", "surrogatepass")


def read_request(data: bytes) -> Request:
    """Raises ``ValueError``, ``TypeError`` or ``KeyError`` for what is none."""
    values: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
    ranks = tuple(Rank(row["pid"], row["rank"]) for row in values["ranks"])
    return Request(**{**values, "run_dir": Path(values["run_dir"]), "ranks": ranks})


def carry_out(request: Request) -> NodeScene:
    """Take the scene, pin the newest valid checkpoint, thin out older scenes.

    Raises ``SlurmtrainError`` where nothing can be taken or written.
    """
    run = RunDir(request.run_dir)
    plan = run.read_plan()
    options = plan.spec.scene
    scene = build_scene(request, run, plan)
    budget_s = max(1.0, (request.budget_s or options.budget_s) - _RESERVE_S)
    keeps = request.batch_host or request.ending == AFTER
    goes_on = request.ending in {FAILED, HUNG}  # the next launch may begin at any moment, and rotate checkpoints away
    if keeps and goes_on:
        _pin(run, plan)
    taken = take_scene(read_frozen_collectors(run.path), scene, budget_s, options.disable)
    if keeps:
        if not goes_on:
            _pin(run, plan)
        with contextlib.suppress(OSError, SlurmtrainError):
            thin_scenes(run, options.keep_first, options.keep_last)
    return taken


def _pin(run: RunDir, plan: Plan) -> None:
    with contextlib.suppress(OSError, SlurmtrainError):
        pin_newest(run.path, plan.spec.checkpoint)


def build_scene(request: Request, run: RunDir, plan: Plan) -> Scene:
    """What the collectors are told. A journal that cannot be read leaves ``since`` and the log's offset at 0."""
    started = _find_start(run, request)
    return Scene(
        out=run.path,
        node=request.node,
        ending=request.ending,
        run_dir=run.path,
        job_id=request.job_id,
        attempt=request.attempt,
        launch=request.launch,
        nodes=request.nodes,
        since=started.at if started else 0.0,
        cause=request.cause,
        batch_host=request.batch_host,
        work_dir=Path(plan.spec.workdir or "."),
        checkpoint_dir=checkpoint_dir(run.path, plan.spec.checkpoint),
        log_file=_log_of(run, started, request),
        log_offset=started.log_offset if started else 0,
        ranks=request.ranks,
        environ={**_given_variables(plan), **request.environ},
    )


def _given_variables(plan: Plan) -> dict[str, str]:
    """The job file's variables: only the ranks have them in their environment, and their secrets are to be masked."""
    return {str(name): str(value) for name, value in plan.spec.environment.variables.items()}


def _find_start(run: RunDir, request: Request) -> LaunchStarted | None:
    try:
        events = read_journal(run.journal, skip_unreadable=True)
    except StoreError:
        return None
    key = (request.attempt, request.launch)
    return next((e for e in events if isinstance(e, LaunchStarted) and (e.attempt, e.launch) == key), None)


def _log_of(run: RunDir, started: LaunchStarted | None, request: Request) -> Path | None:
    if started is not None and started.log_file:
        return run.path / started.log_file
    return run.log_file(request.job_id) if request.job_id else None
