"""The newest valid checkpoint, kept from being deleted: hard links to its files, which cost no space while it lives.

In the run's directory, or beside the checkpoints where those lie on another file system. They keep it from being
deleted, renamed or rotated away, not from being overwritten in place. Where the file system has no hard links nothing
is kept, and nothing is ever copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.checkpoints.find import Choice, Found, checkpoint_dir, choose, find_newest
from slurmtrain.checkpoints.listing import step_of
from slurmtrain.checkpoints.model import BROKEN, Health
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError

PINNED = "kept-checkpoint"  # a folder with one entry, the checkpoint, or with the parts of one
MAX_FILES = 100_000
Name = tuple[str, bool]  # a path relative to the checkpoint, and whether it is a folder
_STALE_S = 3600.0
_LINK_ERRORS = "the file system keeps no second name for a file"


def pin_newest(run_dir: Path, checkpoint: Checkpoint) -> Path | None:
    """Pin it, and let go of the one before; where it lies now. None where no checkpoint passes its check.

    Raises ``StoreError`` where its files can have no second name here.
    """
    choice = choose(run_dir, checkpoint)
    if choice.newest is None or choice.doubtful or (choice.verdict and choice.verdict.health is not Health.VALID):
        return None
    return pin(run_dir, checkpoint, choice.newest)


def pin(run_dir: Path, checkpoint: Checkpoint, found: Found) -> Path:
    """Pin this one; see ``pin_newest``."""
    reasons = []
    try:
        trees = _trees(found)
    except OSError as exc:
        raise StoreError(f"the checkpoint {found.path} is not kept from deletion: {exc.strerror or exc}") from exc
    for place in _places(run_dir, checkpoint):
        staged = _staged(place)
        _sweep(place)
        try:
            staged.mkdir(mode=0o700)
            for source, names in trees.items():
                _link_tree(source, staged / source.name, names)
            _swap(staged, place)
        except OSError as exc:
            reasons.append(f"{place.parent}: {exc.strerror or exc}")
            continue
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        for other in _places(run_dir, checkpoint):
            if other != place:
                shutil.rmtree(other, ignore_errors=True)
        return place / found.path.name
    raise StoreError(f"the checkpoint {found.path} is not kept from deletion ({_LINK_ERRORS}: {'; '.join(reasons)})")


def find_pinned(run_dir: Path, checkpoint: Checkpoint) -> Path | None:
    """The folder that holds the pinned checkpoint; None where none is pinned. Never raises."""
    for place in _places(run_dir, checkpoint):
        with contextlib.suppress(OSError):
            if any(place.iterdir()):
                return place
    return None


def pinned_names(run_dir: Path, checkpoint: Checkpoint) -> list[str]:
    """What is pinned: one checkpoint, or the parts of one. Never raises."""
    place = find_pinned(run_dir, checkpoint)
    with contextlib.suppress(OSError):
        return [entry.name for entry in place.iterdir()] if place is not None else []
    return []


def is_older_than_kept(run_dir: Path, checkpoint: Checkpoint, choice: Choice) -> bool:
    """Whether the training has rotated away a better one than is left: it counted broken ones as its newest."""
    if choice.newest is None:
        return True
    if choice.doubtful:
        return choice.verdict is not None and choice.verdict.health in BROKEN
    kept = max((step_of(name) or 0 for name in pinned_names(run_dir, checkpoint)), default=0)
    return any(v.health in BROKEN for _, v in choice.passed_over) and kept > (choice.newest.step or 0)


def find_missing(run_dir: Path, checkpoint: Checkpoint) -> Found | None:
    """The pinned checkpoint, at its place among the pinned, where ``bring_back`` would bring it back. Never raises."""
    place, folder = find_pinned(run_dir, checkpoint), checkpoint_dir(run_dir, checkpoint)
    if place is None or all(os.path.lexists(folder / name) for name in pinned_names(run_dir, checkpoint)):
        return None
    return find_newest(run_dir, dataclasses.replace(checkpoint, dir=str(place), pattern="*"))


def unpin(run_dir: Path, checkpoint: Checkpoint, name: str | None = None) -> None:
    """Let go of it; with ``name`` only if that is the one. Never raises."""
    place = find_pinned(run_dir, checkpoint)
    with contextlib.suppress(OSError):
        if place is not None and (name is None or any(entry.name.startswith(name) for entry in place.iterdir())):
            shutil.rmtree(place, ignore_errors=True)


def bring_back(run_dir: Path, checkpoint: Checkpoint) -> list[str]:
    """Link the pinned checkpoint to where the training looks for it; the names that are there again.

    Raises ``StoreError`` where that is not possible. What lies there under such a name is left alone.
    """
    place, folder = find_pinned(run_dir, checkpoint), checkpoint_dir(run_dir, checkpoint)
    if place is None:
        return []
    names = []
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for entry in sorted(place.iterdir()):
            target = folder / entry.name
            if not os.path.lexists(target):
                _bring(entry, target)
                names.append(entry.name)
    except OSError as exc:
        raise StoreError(f"cannot bring {place} back to {folder}: {exc.strerror or exc}") from exc
    return names


def _places(run_dir: Path, checkpoint: Checkpoint) -> Iterator[Path]:
    yield run_dir / PINNED
    yield checkpoint_dir(run_dir, checkpoint) / f".{PINNED}-{run_dir.name}"  # names with a dot are no checkpoints


def _trees(found: Found) -> dict[Path, list[Name]]:
    """What is to be linked, listed at once: what a rotation deletes from now on is missed. Raises ``OSError``."""
    sources = [found.path.parent / part for part in sorted(found.parts)] if found.parts else [found.path]
    return {source: _names_below(source) for source in sources}


def _bring(entry: Path, target: Path) -> None:
    """A folder gets its name when all of it is there: a half one is no checkpoint. Raises ``OSError``."""
    if not entry.is_dir():
        _link_tree(entry, target, _names_below(entry))
        return
    staged = _staged(target)
    try:
        _link_tree(entry, staged, _names_below(entry))
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _staged(place: Path) -> Path:
    return place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp")


def _link_tree(source: Path, target: Path, names: list[Name]) -> None:
    """All of it or an ``OSError``. Links within it stay links; a file behind a symbolic link is not ours to keep."""
    for name, is_folder in names:
        if is_folder:
            (target / name).mkdir(mode=0o700)
        else:
            os.link(source / name, target / name, follow_symlinks=False)
    if set(names) != set(_names_below(source)):
        raise OSError(f"{source.name} was changed or deleted meanwhile")


def _names_below(source: Path) -> list[Name]:
    """The source itself first, as ".", each folder before what lies in it. Raises ``OSError``."""
    if not source.is_dir():
        return [(".", False)]
    found: list[Name] = [(".", True)]
    for folder, names, files in os.walk(source, onerror=_fail):
        here = Path(folder).relative_to(source)
        found += [(str(here / name), False) for name in files]
        found += [(str(here / name), not (source / here / name).is_symlink()) for name in names]
        if len(found) > MAX_FILES:
            raise OSError(f"it has more than {MAX_FILES} files")
    return found


def _fail(error: OSError) -> None:
    raise error


def _swap(staged: Path, place: Path) -> None:
    old = place.with_name(f".{place.name}.{secrets.token_hex(6)}.old")
    with contextlib.suppress(FileNotFoundError):
        place.rename(old)
    staged.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _sweep(place: Path) -> None:
    """What a kill left half made: its links would hold the space of checkpoints that the training deletes."""
    name = glob.escape(place.name)
    for left in [*place.parent.glob(f".{name}.*.tmp"), *place.parent.glob(f".{name}.*.old")]:
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
