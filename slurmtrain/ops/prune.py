"""``slurmtrain prune``: ended runs that may go, go; of the others the many small files become few.

What is kept whatever anybody asks: runs that have not ended, pinned ones, other people's, those with a job that Slurm
still has, those within their floor (``core.retention``), what cannot be read, what slurmtrain did not make, and of each
run's checkpoints the newest valid one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import is_terminal
from slurmtrain.core.retention import TIDY_AFTER_S, Candidate, Limits, choose
from slurmtrain.core.run import Attempt
from slurmtrain.core.spec import parse_time_limit
from slurmtrain.errors import StoreError
from slurmtrain.ops.compact import compact, is_compact, left_half, sweep_half
from slurmtrain.ops.prune_checkpoints import find_user, find_users, keep_newest, prune_checkpoints
from slurmtrain.ops.shipping.ledger import read_state
from slurmtrain.ops.shipping.summary import note_copy, read_copy
from slurmtrain.ops.status import iso_time, read_views
from slurmtrain.ops.timeline import RunView, as_time, ended_at, find_plan, read_view
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.aside import PREFIX, delete, left_aside, measure, put_back, set_aside
from slurmtrain.store.publish import exists, to_json
from slurmtrain.store.publish import replace as write_file
from slurmtrain.store.rundir import RunDir, runs_of

# What slurmtrain makes in a run directory and what goes with the run; what else lies there is somebody's and stays.
_GOES = (
    "agent.pyz", "attempts", "collectors.json", "explain.html", "folded.zip", "job.sbatch", "launch.sh", "logs",
    "rescue.sbatch", "rules.json", "ship", "stage_in.sh", "stage_out.sh", "submissions",
)  # fmt: skip
_STAYS = ("done", "journal", "pinned", "plan.json", "pruned.json", "spec.yaml", "stop", "submissions.json", "uploaded")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a person asked for. ``checkpoints`` is how many valid ones each ended run keeps, None for all."""

    limits: Limits = field(default_factory=Limits)
    checkpoints: int | None = None
    outside: bool = False  # checkpoints outside run directories, too
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """What became of one run: ``deleted``, ``trimmed`` (its newest checkpoint is left), ``compacted`` or ``kept``."""

    run_id: str
    name: str
    state: str
    action: str
    why: str
    ended_at: float | None = None
    freed: int = 0
    kept: tuple[str, ...] = ()
    problem: str = ""
    remote: str = ""  # where a complete copy of a run that goes is; that stays

    def to_dict(self) -> dict[str, Any]:
        row = {name: getattr(self, name) for name in ("run_id", "name", "state", "action", "why")}
        return {
            **row,
            "ended_at": iso_time(self.ended_at),
            "freed_bytes": self.freed,
            "kept": list(self.kept),
            "problem": self.problem,
            "remote_copy": self.remote or None,
        }


def prune(store: Path, runs: Sequence[RunDir], slurm: SlurmClient, wanted: Wanted, now: float) -> list[Row]:
    """Do it, or say what would be done.

    Raises ``SlurmtrainError`` where Slurm cannot be asked: then nothing is done.
    """
    views = read_views(runs)
    named = {run.run_id for run in runs}
    users = find_users([*views, *read_views([run for run in runs_of(store) if run.run_id not in named])])
    alive = _jobs_in_slurm(views, slurm)
    candidates = [_candidate(view, alive, users, sized=wanted.limits.max_bytes is not None) for view in views]
    verdicts = choose(candidates, wanted.limits, now)
    if not wanted.dry_run:
        _finish_earlier(store)
    by_id = {candidate.run_id: candidate for candidate in candidates}
    rows = []
    for view in views:
        goes, why = verdicts[view.run.run_id]
        rows.append(_treat(view, by_id[view.run.run_id], wanted, now, why=why, goes=goes))
    return rows


def _treat(view: RunView, candidate: Candidate, wanted: Wanted, now: float, *, why: str, goes: bool) -> Row:
    row = Row(view.run.run_id, view.name, view.state.state.value, "kept", why, candidate.ended_at)
    if candidate.protected or candidate.ended_at is None:
        return row
    try:
        if goes:
            return _remove(view, wanted, row)
        age = now - candidate.ended_at
        if wanted.checkpoints is not None and age > candidate.floor_s:
            freed = prune_checkpoints(view.run, wanted.checkpoints, outside=wanted.outside, dry_run=wanted.dry_run)
            row = replace(row, freed=freed)
        if age > TIDY_AFTER_S and not exists(view.run.pruned_file) and not is_compact(view.run):
            if not wanted.dry_run:
                compact(view)
            return replace(row, action="compacted")
    except (StoreError, OSError) as exc:
        return replace(row, problem=str(exc))
    return row


# -- what may go -----------------------------------------------------------------------------------------------------


def _jobs_in_slurm(views: Sequence[RunView], slurm: SlurmClient) -> set[str]:
    """Job ids of ended runs that Slurm still has in its queue; one query, none where no run has ended."""
    wanted: dict[JobId, str] = {}
    for view in views:
        if view.state.ended and view.job_id:
            try:
                wanted[parse_job_id(view.job_id)] = view.job_id
            except ValueError:
                continue
    if not wanted:
        return set()
    jobs = slurm.observe(set(wanted)).jobs
    alive = [job_id for job_id in wanted if job_id in jobs and not is_terminal(jobs[job_id].state, requeue=True)]
    return {wanted[job_id] for job_id in alive}


def _candidate(view: RunView, alive: set[str], users: Mapping[Path, str], *, sized: bool) -> Candidate:
    plan = find_plan(view.run)
    text = plan.spec.resources.time_limit if plan is not None else None
    try:
        limit = parse_time_limit(text) if text else None
    except ValueError:
        limit = None
    attempts = view.state.attempts
    longest = max((_duration(attempt) for attempt in attempts), default=0.0)
    return Candidate(
        view.run.run_id,
        ended_at(view),
        cycle_s=max(float(limit or 0), longest),
        window_s=_longest_wait(attempts),
        size=measure(view.run.path)[0] if sized else 0,
        protected=_protection(view, alive, users),
    )


def _protection(view: RunView, alive: set[str], users: Mapping[Path, str]) -> str:
    run = view.run
    try:
        if run.path.is_symlink():
            return "its directory is a link to somewhere else"
        if os.geteuid() != 0 and run.path.stat().st_uid != os.geteuid():
            return "it belongs to somebody else"
    except OSError as exc:
        return f"its directory cannot be looked at: {exc.strerror or exc}"
    if exists(run.pinned_file):
        return "it is pinned"
    if view.damage:
        return f"it cannot be read whole: {view.damage[0]}"
    if not view.events:
        return "its journal is empty, so nothing says that it has ended"
    if not view.state.ended:
        return f"it has not ended: {view.state.state.value}"
    if user := find_user(run, users):
        return f"run {user} goes on in its checkpoint folder"
    if _misses_copy(run):
        return (
            f"its remote copy is not complete: `slurmtrain ship {run.run_id}`; to give that up, remove its folder ship"
        )
    return f"Slurm still has its job {view.job_id}" if view.job_id in alive else ""


def _misses_copy(run: RunDir) -> bool:
    """Whether the job file asks for a remote copy that is not complete."""
    if not exists(run.ship) or exists(run.pruned_file) or read_state(run.ship).complete:
        return False
    plan = find_plan(run)
    return plan is not None and plan.spec.ship.url is not None


def _duration(attempt: Attempt) -> float:
    begin, end = _begin(attempt), _end(attempt)
    return max(0.0, end - begin) if begin is not None and end is not None else 0.0


def _longest_wait(attempts: Sequence[Attempt]) -> float:
    waits = [0.0]
    for one, following in itertools.pairwise(attempts):
        begin, end = _begin(following), _end(one)
        if begin is not None and end is not None:
            waits.append(begin - end)
    return max(waits)


def _begin(attempt: Attempt) -> float | None:
    return as_time(attempt.started.at) if attempt.started is not None else None


def _end(attempt: Attempt) -> float | None:
    return as_time(attempt.decided_at) or (as_time(attempt.ended.at) if attempt.ended is not None else None)


# -- letting it go ---------------------------------------------------------------------------------------------------


def _finish_earlier(store: Path) -> None:
    """What a prune that was killed had set aside; in single runs it is finished when they are looked at.

    What cannot be deleted (somebody else's, in a store that is shared) waits for who can.
    """
    for path in left_aside((store / "runs").resolve()):
        with contextlib.suppress(StoreError):
            delete(path)


def _remove(view: RunView, wanted: Wanted, row: Row) -> Row:
    """The whole directory where nothing in it must stay, else all but that."""
    run, plan = view.run, find_plan(view.run)
    copy = read_copy(run, plan.spec if plan is not None else None)
    row = replace(row, remote=copy.url if copy is not None and copy.complete else "")
    stays = keep_newest(run)
    foreign = _foreign(run, stays.top)
    if not stays.names and not foreign:
        freed = measure(run.path)[0]
        if not wanted.dry_run:
            _remove_all(view)
        return replace(row, action="deleted", freed=freed)
    kept = (*(f"{stays.top}/{name}" for name in sorted(stays.names)), *foreign)
    freed = sum(measure(run.path / name)[0] for name in _GOES)
    freed += prune_checkpoints(run, 1, outside=False, dry_run=wanted.dry_run) if stays.names else 0
    if exists(run.pruned_file) and not _is_half_trimmed(run):
        return replace(row, why="only what must stay is left of it", kept=kept, freed=0)
    if not wanted.dry_run:
        _trim(view)
    return replace(row, action="trimmed", freed=freed, kept=kept)


def _foreign(run: RunDir, checkpoints: str) -> tuple[str, ...]:
    """What lies in the run directory and is not slurmtrain's; a link to checkpoints elsewhere is."""
    known = {*_GOES, *_STAYS, checkpoints}
    ours = run.path / "checkpoints"
    if ours.is_symlink() or (ours.is_dir() and not any(ours.iterdir())):
        known.add(ours.name)
    known |= {path.name for path in left_half(run)}
    names = (path.name for path in run.path.iterdir())
    return tuple(sorted(name for name in names if name not in known and not name.startswith(PREFIX)))


def _remove_all(view: RunView) -> None:
    """Out of the way first. Who made the run go on in that moment gets it back."""
    run = view.run
    aside = set_aside(run.path)
    again = read_view(RunDir(aside))
    if len(again.events) != len(view.events) or exists(RunDir(aside).pinned_file):
        put_back(aside, run.path)
        raise StoreError("somebody wrote into it meanwhile: it stays")
    delete(aside)


def _trim(view: RunView) -> None:
    """First it is said, then done: whoever finds it half done knows why."""
    run = view.run
    again = read_view(run)
    if len(again.events) != len(view.events):
        raise StoreError("somebody wrote into it meanwhile: it stays")
    if not is_compact(run) and not exists(run.pruned_file):
        compact(again)
    plan = find_plan(run)
    record = {"at": time.time(), "what": "logs, scenes and scripts were deleted"}
    write_file(
        run.pruned_file, to_json({**record, "remote_copy": note_copy(run, plan.spec if plan is not None else None)})
    )
    for name in _GOES:
        path = run.path / name
        if path.exists() or path.is_symlink():
            delete(set_aside(path))
    for path in left_aside(run.path):
        delete(path)
    sweep_half(run)


def _is_half_trimmed(run: RunDir) -> bool:
    """Whether a prune that trimmed it was killed before all had gone."""
    half = left_aside(run.path) or left_half(run)
    return bool(half) or any(os.path.lexists(run.path / name) for name in _GOES)


def summarize(rows: Sequence[Row]) -> Mapping[str, Any]:
    """For ``--json``: every run, and what it comes to."""
    return {
        "runs": [row.to_dict() for row in rows],
        "freed_bytes": sum(row.freed for row in rows),
        "problems": sum(1 for row in rows if row.problem),
    }
