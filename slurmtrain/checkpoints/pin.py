"""The newest valid checkpoint, kept from being deleted: hard links to its files, which cost no space while it lives.

In the run's directory, or beside the checkpoints where those lie on another file system. They keep it from being
deleted, renamed or rotated away, not from being overwritten in place. Where the file system has no hard links nothing
is kept, and nothing is ever copied.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.checkpoints.find import Found, checkpoint_dir, choose
from slurmtrain.checkpoints.model import Health
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError

PINNED = "kept-checkpoint"  # a folder with one entry, the checkpoint, or with the parts of one
MAX_FILES = 100_000
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
    for place in _places(run_dir, checkpoint):
        staged = place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp")
        try:
            staged.mkdir(mode=0o700)
            _link_all(found, staged)
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
                _link_tree(entry, target)
                names.append(entry.name)
    except OSError as exc:
        raise StoreError(f"cannot bring {place} back to {folder}: {exc.strerror or exc}") from exc
    return names


def _places(run_dir: Path, checkpoint: Checkpoint) -> Iterator[Path]:
    yield run_dir / PINNED
    yield checkpoint_dir(run_dir, checkpoint) / f".{PINNED}-{run_dir.name}"  # names with a dot are no checkpoints


def _link_all(found: Found, staged: Path) -> None:
    sources = [found.path.parent / part for part in sorted(found.parts)] if found.parts else [found.path]
    for source in sources:
        _link_tree(source, staged / source.name)


def _link_tree(source: Path, target: Path) -> None:
    """Links within it stay links; a file behind a symbolic link is not ours to keep. Raises ``OSError``."""
    if not source.is_dir():
        os.link(source, target, follow_symlinks=False)
        return
    target.mkdir(mode=0o700)
    count = 0
    for folder, names, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        for name in files:
            count += 1
            if count > MAX_FILES:
                raise OSError(f"it has more than {MAX_FILES} files")
            os.link(Path(folder) / name, here / name, follow_symlinks=False)
        for name in names:
            if not (Path(folder) / name).is_symlink():
                (here / name).mkdir(mode=0o700)


def _swap(staged: Path, place: Path) -> None:
    old = place.with_name(f".{place.name}.{secrets.token_hex(6)}.old")
    with contextlib.suppress(FileNotFoundError):
        place.rename(old)
    staged.rename(place)
    shutil.rmtree(old, ignore_errors=True)
