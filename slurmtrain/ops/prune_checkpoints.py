"""Which checkpoints of an ended run may go. The newest valid one never does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.find import Found, checkpoint_dir, choose, find_all
from slurmtrain.checkpoints.model import BROKEN, RESUMABLE
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError
from slurmtrain.ops.timeline import RunView, find_plan
from slurmtrain.store.aside import delete, left_aside, measure, set_aside
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir


@dataclass(frozen=True, slots=True)
class Staying:
    """``top``: the entry of the run directory that holds checkpoints, "" where they lie elsewhere.

    ``names``: what in the checkpoint folder must stay.
    """

    top: str
    names: frozenset[str] = frozenset()


def find_users(views: Iterable[RunView]) -> dict[Path, str]:
    """Checkpoint folders that runs train in, or may go on in: folder → run id. ``restart --resume`` shares a folder."""
    found = {}
    for view in views:
        plan = find_plan(view.run)
        if plan is not None and (not view.state.ended or view.damage or exists(view.run.pinned_file)):
            with contextlib.suppress(OSError, RuntimeError):
                found[checkpoint_dir(view.run.path, plan.spec.checkpoint).resolve()] = view.run.run_id
    return found


def find_user(run: RunDir, users: Mapping[Path, str]) -> str:
    """Which other run uses this one's checkpoint folder, or one in its directory; "" where none does."""
    plan = find_plan(run)
    try:
        own = [run.path.resolve()]
        own += [checkpoint_dir(run.path, plan.spec.checkpoint).resolve()] if plan is not None else []
    except (OSError, RuntimeError):
        return ""
    shared = (user for folder, user in users.items() if any(folder.is_relative_to(one) for one in own))
    return next((user for user in shared if user != run.run_id), "")


def keep_newest(run: RunDir) -> Staying:
    """What must stay of the checkpoints in the run directory. Where that cannot be told, everything."""
    plan = find_plan(run)
    if plan is None:
        return Staying("checkpoints", _names(run.path / "checkpoints"))
    folder = checkpoint_dir(run.path, plan.spec.checkpoint)
    if not _is_inside(run, folder):
        return Staying("")
    top = folder.relative_to(run.path).parts
    choice = choose(run.path, plan.spec.checkpoint)
    if choice.newest is None and not choice.passed_over:
        return Staying(top[0] if top else "", frozenset() if top else _names(folder))
    if choice.newest is None or choice.doubtful or choice.verdict is None:
        return Staying(top[0] if top else "", _names(folder))
    return Staying(top[0] if top else "", frozenset(_names_of(choice.newest)))


def prune_checkpoints(run: RunDir, keep: int, *, outside: bool, dry_run: bool) -> int:
    """Delete what is older than the ``keep`` newest valid checkpoints (at least one); bytes that it frees.

    Nothing goes while it is not known which are valid. ``outside``: also where they lie outside the run directory.
    """
    plan = find_plan(run)
    if plan is None:
        return 0
    spec = plan.spec.checkpoint
    folder = checkpoint_dir(run.path, spec)
    if not (_is_inside(run, folder) or outside):
        return 0
    if not dry_run:
        for path in left_aside(folder):
            delete(path)
    freed = 0
    for found in _beyond(find_all(run.path, spec), spec, max(1, keep), run.path / OWN_FORMATS):
        for name in sorted(_names_of(found)):
            freed += _take(folder / name, dry_run=dry_run)
    return freed


def _beyond(found: list[Found], spec: Checkpoint, keep: int, own: Path) -> list[Found]:
    """Those behind the ``keep``-th valid one; none where one of the newer cannot be judged."""
    valid = 0
    for position, one in enumerate(found):
        verdict = check_apart(one.path, deep=False, marker=spec.marker, parts=one.parts, own=own)
        if verdict.health in RESUMABLE:
            valid += 1
            if valid == keep:
                return found[position + 1 :]
        elif verdict.health not in BROKEN:
            return []
    return []


def _take(path: Path, *, dry_run: bool) -> int:
    if path.is_symlink():
        return 0
    size = measure(path)[0]
    if not dry_run:
        delete(set_aside(path))
    return size


def _is_inside(run: RunDir, folder: Path) -> bool:
    """Whether the folder really lies in the run directory: no part of the way may be a link."""
    try:
        return folder.resolve().is_relative_to(run.path.resolve()) and folder.exists()
    except (OSError, RuntimeError):
        return False


def _names_of(found: Found) -> set[str]:
    """The entries of the checkpoint folder that make up a checkpoint, with marks beside it that begin with its name."""
    folder = found.path.parent
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError as exc:
        raise StoreError(f"cannot list {folder}: {exc.strerror or exc}") from exc
    own = found.path.name
    return {name for name in names if name == own or name.startswith(f"{own}.")} | set(found.parts)


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(path.name for path in folder.iterdir())
    except OSError:
        return frozenset()
