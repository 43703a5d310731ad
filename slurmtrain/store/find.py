"""Which runs a name means: an id, the beginning of one, a run's name, a job id; of an array, all its runs or one."""

from __future__ import annotations

import re
from pathlib import Path

from slurmtrain.errors import NotFoundError, StoreError, UsageError
from slurmtrain.store.groups import GroupDir, groups_of
from slurmtrain.store.rundir import RunDir, runs_of

_ID_TAIL = re.compile(r"-([0-9]{8}-[0-9]{4})-[0-9a-f]+", re.ASCII)  # date and random part behind the name
_JOB = re.compile(r"[0-9]+(?:_[0-9]+)?", re.ASCII)
_TASK = re.compile(r"(.+)[-_]([0-9]{1,7})", re.ASCII)
_Found = RunDir | GroupDir


def find_run(store: Path, name: str) -> RunDir:
    """The run with this id, the newest with this name, that with this unambiguous beginning, or of this job id.

    Raises ``NotFoundError``, and ``UsageError`` for a name that means the several runs of an array.
    """
    found = _find(store, name)
    if isinstance(found, RunDir):
        return found
    runs = found.read_runs()
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise NotFoundError(f"the runs of array {found.group_id} are gone from {store}")
    raise UsageError(
        f"{found.group_id} is an array of {len(runs)} runs: name one of them, like {runs[0].run_id}; "
        f"`slurmtrain status -r {found.group_id}` lists them"
    )


def find_runs(store: Path, name: str) -> list[RunDir]:
    """As ``find_run``, but an array means all its runs, by task number."""
    found = _find(store, name)
    if isinstance(found, RunDir):
        return [found]
    runs = found.read_runs()
    if not runs:
        raise NotFoundError(f"the runs of array {found.group_id} are gone from {store}")
    return runs


def _find(store: Path, name: str) -> _Found:
    runs, groups = runs_of(store), groups_of(store)
    everything: list[_Found] = [*runs, *groups]
    for exact in everything:
        if _id(exact) == name:
            return exact
    if _JOB.fullmatch(name) and (of_job := _of_job(runs, groups, name)) is not None:
        return of_job
    tasks = {group.run(task).path for group in groups for task in _tasks(group)}
    heads: list[_Found] = [*groups, *(run for run in runs if run.path not in tasks)]
    named = [found for found in heads if _ID_TAIL.fullmatch(_id(found), len(name)) and _id(found).startswith(name)]
    if named:
        return max(named, key=_age)
    starting = [found for found in heads if _id(found).startswith(name)] if name else []
    if len(starting) == 1:
        return starting[0]
    if not starting and (task := _TASK.fullmatch(name)) is not None:
        return _one_task(store, name, task[1], int(task[2]))
    raise _not_found(store, name, starting)


def _one_task(store: Path, name: str, head: str, task: int) -> RunDir:
    """``GROUP-3``, where GROUP is any name of the group."""
    try:
        group = _find(store, head)
    except NotFoundError:
        raise _not_found(store, name, []) from None
    if isinstance(group, GroupDir):
        run = group.run(task)
        if run.path.is_dir():
            return run
        raise NotFoundError(f"array {group.group_id} has no task {task}")
    raise _not_found(store, name, [])


def _not_found(store: Path, name: str, starting: list[_Found]) -> NotFoundError:
    if not starting:
        return NotFoundError(f"no run {name[:80]!r} in {store}: `slurmtrain status` lists the runs")
    names = ", ".join(_id(found) for found in starting[:5])
    more = ", …" if len(starting) > 5 else ""
    return NotFoundError(
        f"{name!r} fits {len(starting)} runs ({names}{more}): write more of the id, or the job's number"
    )


def _of_job(runs: list[RunDir], groups: list[GroupDir], name: str) -> _Found | None:
    """The newest run, or the array, that this job belongs to."""
    for group in groups:
        if group.read_job_id() == name:
            return group
    by_job = [run for run in runs if name in run.read_submissions().values()]
    return by_job[-1] if by_job else None


def _tasks(group: GroupDir) -> tuple[int, ...]:
    try:
        return group.read_tasks()
    except (NotFoundError, StoreError):
        return ()


def _id(found: _Found) -> str:
    return found.path.name


def _age(found: _Found) -> tuple[str, float]:
    """Sorts runs of one name by their date; within a minute by when they were written."""
    date = _ID_TAIL.search(_id(found))
    try:
        written = (found.plan if isinstance(found, RunDir) else found.record).stat().st_mtime
    except OSError:
        written = 0.0
    return (date.group(1) if date else "", written)
