"""Submitting an array: one ``sbatch --array`` makes many runs, each with a directory and a journal of its own.

The group's directory comes first, then the runs, then Slurm: whatever dies in between, a run that exists has a group.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slurmtrain.config.resolve import Resolved
from slurmtrain.config.specfile import dump_spec
from slurmtrain.core.array import ArrayRequest, array_task, parse_array
from slurmtrain.core.jobid import JobId
from slurmtrain.errors import UsageError
from slurmtrain.ops.prepare import (
    Extensions,
    Prepared,
    build_frozen_files,
    build_own_files,
    build_run_id,
    check_bash,
    check_path,
    choose_agent_python,
    render_run,
)
from slurmtrain.ops.submit import Handover, Tell, create_dir, folders_of, for_each, hand_over
from slurmtrain.ops.submitter import submitter
from slurmtrain.render.scripts import render_array_script
from slurmtrain.resources import bundled
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.groups import GroupDir
from slurmtrain.store.publish import to_json

_TASK_ROOM = 8  # of a run id, for a dash and the largest task number


@dataclass(frozen=True, slots=True)
class PreparedArray:
    """An array that could be submitted; nothing is written yet."""

    group: GroupDir
    request: ArrayRequest
    resolved: Resolved
    batch: str  # the script that all tasks share
    runs: tuple[Prepared, ...]
    created_at: datetime
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceptedArray:
    """Slurm took the array; ``job_id`` is the array's."""

    group: GroupDir
    job_id: JobId
    notes: tuple[str, ...] = ()


def prepare_array(
    resolved: Resolved, store: Path, now: datetime, extensions: Extensions, agent_python: str | None = None
) -> PreparedArray:
    """Render and check all runs of an array. Raises ``SpecError`` for what only a rendered script shows."""
    spec = resolved.spec
    if spec.array is None:
        raise UsageError("no array was asked for")
    request = parse_array(spec.array)
    group = GroupDir(store / "groups" / build_run_id(spec.name, now, room=_TASK_ROOM))
    check_path(group.run(request.tasks[-1]).path)
    python, python_note = choose_agent_python(agent_python)
    batch = render_array_script(
        spec,
        group_id=group.group_id,
        runs=group.runs,
        agent_python=python,
        bundled=bundled("templates"),
        overrides=extensions.templates,
    )
    runs = [_render_task(resolved, group, request, task, now, extensions, python) for task in request.tasks]
    check_bash(runs[0].scripts.launch, "launch.sh", spec)
    for name, script in runs[0].scripts.stages.items():
        check_bash(script, name, spec)
    check_bash(runs[0].scripts.batch, "job.sbatch", spec)
    check_bash(batch, "job.sbatch", spec)
    return PreparedArray(group, request, resolved, batch, tuple(runs), now, (*resolved.notes, *python_note))


def _render_task(
    resolved: Resolved,
    group: GroupDir,
    request: ArrayRequest,
    task: int,
    now: datetime,
    extensions: Extensions,
    python: str,
) -> Prepared:
    """One run. Its own batch script is an array of one, with the same task number: what a resubmission needs."""
    checkpoint = dataclasses.replace(
        resolved.spec.checkpoint, dir=resolved.spec.checkpoint.dir.replace("%a", str(task))
    )
    own = dataclasses.replace(resolved, spec=dataclasses.replace(resolved.spec, array=str(task), checkpoint=checkpoint))
    place = array_task(request, task)
    return render_run(own, group.run(task).path, now, extensions, python, place, group.group_id)


def submit_array(
    prepared: PreparedArray,
    slurm: SlurmClient,
    *,
    tell: Tell = lambda _text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> AcceptedArray:
    """Write the group and its runs and hand the array to Slurm; raises as ``hand_over`` does."""
    group, runs = prepared.group, [one.run for one in prepared.runs]
    tasks = prepared.request.tasks
    directories = [group.path, *(run.path for run in runs)]
    made = list(zip(runs, tasks, strict=True))
    handover = Handover(group.batch_script, made, directories, f"array {group.group_id}", group.submission)
    try:
        _create_dirs(prepared)
    except BaseException:
        handover.discard()
        raise
    job_id, notes = hand_over(handover, slurm, name=prepared.resolved.spec.name, tell=tell, sleep=sleep)
    return AcceptedArray(group, job_id, tuple(notes))


def _create_dirs(prepared: PreparedArray) -> None:
    """Program and rules are the same for all runs: they lie in the group's directory, and in each run's by a link."""
    group, resolved = prepared.group, prepared.resolved
    record = {
        "group_id": group.group_id,
        "name": resolved.spec.name,
        "array": resolved.spec.array,
        "tasks": list(prepared.request.tasks),
        "created_at": prepared.created_at.timestamp(),
        **submitter(),
    }
    frozen = build_frozen_files(prepared.runs[0].extensions)
    files = {
        group.record.name: (to_json(record), 0o644),
        group.spec.name: (dump_spec(resolved.spec, resolved.sources, group.group_id).encode(), 0o600),
        group.batch_script.name: (prepared.batch.encode(), 0o700),
    }
    create_dir(group.path, {**files, **frozen})
    links = [group.path / name for name in frozen]

    def create(one: Prepared) -> None:
        create_dir(one.run.path, build_own_files(one), folders_of(one), links)

    for_each(create, prepared.runs)
