"""A new run with the parameters of an old one that has ended, linked to it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from slurmtrain.checkpoints.find import checkpoint_dir, find_newest
from slurmtrain.config.resolve import Resolved
from slurmtrain.core.decision import RunState
from slurmtrain.core.events import Restarted
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.errors import NotFoundError, RefusedError, StoreError
from slurmtrain.ops.prepare import Extensions, Prepared, build_run_id, prepare
from slurmtrain.ops.timeline import RunView, find_plan
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import RunDir

Change: TypeAlias = "Callable[[Spec, str], Resolved]"


def prepare_restart(
    view: RunView,
    store: Path,
    now: datetime,
    extensions: Extensions,
    *,
    agent_python: str | None = None,
    resume: bool | None = None,
    change: Change | None = None,
) -> Prepared:
    """The new run, rendered and checked; nothing is written yet.

    ``resume`` True lets it go on in the old run's checkpoint directory, False begins anew; None resumes what did not
    complete. ``change`` makes another spec of the old one; where that has another checkpoint directory, it stays.
    Raises ``RefusedError`` for a run that has not ended, ``NotFoundError`` where its plan cannot be read.
    """
    old = view.run
    if not view.state.ended:
        raise RefusedError(
            f"{old.run_id} has not ended ({view.state.state.value}): two runs would train the same; "
            f"`slurmtrain {_instead(view)} {old.run_id}` first"
        )
    plan = find_plan(old)
    if plan is None:
        raise NotFoundError(f"{old.plan} is missing or unreadable; `slurmtrain submit {old.spec}` takes the job file")
    wanted = view.state.state is not RunState.COMPLETED if resume is None else resume
    name = f"run {old.run_id}"
    sources = dict.fromkeys(_paths(spec_to_dict(plan.spec)), name)
    resolved = change(plan.spec, name) if change is not None else Resolved(plan.spec, sources)
    elsewhere = resolved.spec.checkpoint.dir != plan.spec.checkpoint.dir
    spec, note = (resolved.spec, "") if elsewhere else _with_checkpoints(resolved.spec, old.path, wanted)
    resolved = dataclasses.replace(resolved, spec=spec, notes=(*resolved.notes, *([note] if note else [])))
    target = store / "runs" / build_run_id(spec.name, now)
    prepared = prepare(resolved, target, now, extensions, agent_python, plan.array)
    return dataclasses.replace(prepared, restarted_from=old.run_id)


def link_to_new(old: RunDir, new: str, who: str = "user") -> None:
    """Write into the old run's journal which run goes on in its place; a store that cannot be written loses that."""
    journal = JournalWriter(old.journal, f"restart-{socket.gethostname()}-{os.getpid()}")
    with contextlib.suppress(StoreError):
        journal.append(Restarted(at=time.time(), who=who, as_run=new))


def _instead(view: RunView) -> str:
    return "release" if view.state.state is RunState.HELD else "stop"


def _with_checkpoints(spec: Spec, old: Path, resume: bool) -> tuple[Spec, str]:
    """The spec for the new run, and in words where it begins."""
    newest = find_newest(old, spec.checkpoint)
    shared = Path(spec.checkpoint.dir).is_absolute()
    if newest is None:
        return spec, "there is no checkpoint to go on from: it begins anew"
    if shared and not resume:
        return spec, f"checkpoints are in {spec.checkpoint.dir} for every run: it goes on from {newest.path.name}"
    if not resume:
        return spec, "it begins anew; --resume goes on from the old run's checkpoint"
    there = dataclasses.replace(spec.checkpoint, dir=str(checkpoint_dir(old, spec.checkpoint)))
    return dataclasses.replace(spec, checkpoint=there), f"it goes on from {newest.path}"


def _paths(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Key paths of a spec, as its sources name them."""
    found = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            found += _paths(value, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}")
    return found
