"""The checkpoints of a run: which there are, in which order, and the newest that a launch may resume from."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.checkpoints import tensorflow
from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.check import is_there
from slurmtrain.checkpoints.listing import SET_ASIDE, Named, list_folder, step_of
from slurmtrain.checkpoints.model import BROKEN, RESUMABLE, Health, Verdict
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.checkpoints.plain import TENSOR_SUFFIXES
from slurmtrain.checkpoints.pointers import ASIDE, repoint
from slurmtrain.core.spec import Checkpoint
from slurmtrain.errors import StoreError

_MOST_CHECKED = 10
_TOO_MANY_BROKEN = 3
_MOST_WORDS = 300  # of what is wrong with one: a format of the run's own may have much to say
_LISTINGS = 3  # while checkpoints are deleted under the look at them


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint: a file, a folder, or the common beginning of ``parts``.

    ``step`` is the last number in its name, None where it has none; ``modified`` in seconds since the epoch.
    """

    path: Path
    step: int | None
    modified: float
    parts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """What to resume from, and the newer ones that were passed over with the reason, newest first.

    ``doubtful``: none passed the check, and the newest is handed out all the same. ``left_out``: a sentence about names
    that were not looked at, "" where there is none.
    """

    newest: Found | None
    verdict: Verdict | None
    passed_over: tuple[tuple[Found, Verdict], ...] = ()
    doubtful: bool = False
    left_out: str = ""


def checkpoint_dir(run_dir: Path, checkpoint: Checkpoint) -> Path:
    """Where the training writes; a relative path is relative to the run directory."""
    return run_dir / checkpoint.dir


def find_all(run_dir: Path, checkpoint: Checkpoint) -> list[Found]:
    """Every checkpoint, the newest first: by step, those without a number by the time of writing. Never raises.

    Of more names than can be looked at in seconds, those with the highest numbers; see ``list_all``.
    """
    return list_all(run_dir, checkpoint)[0]


def list_all(run_dir: Path, checkpoint: Checkpoint) -> tuple[list[Found], str]:
    """As ``find_all``, and a sentence about names that were left out; "" where none was. Never raises."""
    folder = checkpoint_dir(run_dir, checkpoint)
    listing = list_folder(folder, checkpoint.pattern)
    found = sorted(_candidates(listing.names), key=lambda one: str(one.path))
    if checkpoint.marker:
        found = [one for one in found if not one.path.name.endswith(checkpoint.marker)]
    if not listing.left_out:
        return _sort(found), ""
    return _sort(found), (
        f"{folder} holds so many names like {checkpoint.pattern!r} that {listing.left_out} of them were not looked at: "
        "give checkpoints a folder of their own, or a narrower checkpoint.pattern"
    )


def _sort(found: list[Found]) -> list[Found]:
    """One without a number comes before the first of the others that is not younger than it."""
    numbered = sorted((c for c in found if c.step is not None), key=lambda c: (c.step or 0, c.modified), reverse=True)
    others = sorted((c for c in found if c.step is None), key=lambda c: c.modified)
    joined: list[Found] = []
    for one in numbered:
        while others and one.modified <= others[-1].modified:
            joined.append(others.pop())
        joined.append(one)
    return joined + others[::-1]


def find_newest(run_dir: Path, checkpoint: Checkpoint) -> Found | None:
    """The newest checkpoint by name, whether it is whole or not. Never raises."""
    return next(iter(find_all(run_dir, checkpoint)), None)


Known = dict[tuple[Path, float], Verdict]  # by path and time of writing


def find_written(run_dir: Path, checkpoint: Checkpoint, since: float, limit_s: float) -> tuple[Found | None, str]:
    """The newest checkpoint that is not broken, and what a newer one lacks, in a sentence ("": there is none such).

    Only what was written after ``since`` (seconds since the epoch) is checked, ``limit_s`` in all; what is left then
    counts as whole, and so does the newest where one after the other looks broken. Never raises.
    """
    deadline, broken, own = time.monotonic() + limit_s, "", run_dir / OWN_FORMATS
    known = find_all(run_dir, checkpoint)[:_MOST_CHECKED]
    for number, found in enumerate(known):
        left = deadline - time.monotonic()
        if not checkpoint.check or found.modified <= since or left <= 0:
            return found, broken
        verdict = check_apart(found.path, marker=checkpoint.marker, parts=found.parts, own=own, limit_s=left)
        if verdict.health not in BROKEN and verdict.health is not Health.GONE:
            return found, broken
        broken = broken or (verdict.detail[:_MOST_WORDS] if verdict.health in BROKEN else "")
        if number + 1 == len(known) >= _TOO_MANY_BROKEN:
            return known[0], ""
    return None, broken


def choose(run_dir: Path, checkpoint: Checkpoint, *, deep: bool = False, known: Known | None = None) -> Choice:
    """The newest checkpoint that may be resumed from. ``known`` gets the verdicts about those that were passed over.

    One that cannot be read now is better than none: the training then fails instead of beginning anew. And where one
    after the other looks broken it is the check that is in doubt. What is deleted meanwhile counts for neither.
    """
    known = {} if known is None else known
    for _ in range(_LISTINGS):
        choice = _choose(run_dir, checkpoint, known, deep=deep)
        if choice.newest is not None and not is_there(choice.newest.path, choice.newest.parts):
            continue
        if choice.newest is not None or not any(v.health is Health.GONE for _, v in choice.passed_over):
            return choice
    return Choice(None, None, choice.passed_over, left_out=choice.left_out)


def _choose(run_dir: Path, checkpoint: Checkpoint, known: Known, *, deep: bool) -> Choice:
    """``known``: verdicts of earlier looks at one that was passed over."""
    passed: list[tuple[Found, Verdict]] = []
    own = run_dir / OWN_FORMATS
    listed, left_out = list_all(run_dir, checkpoint)
    for found in listed[:_MOST_CHECKED]:
        if not checkpoint.check:
            return Choice(found, None, left_out=left_out)
        verdict = known.get((found.path, found.modified))
        for _ in range(2):  # a file system's hiccup must not cost hours of training
            if verdict is None or verdict.health is Health.UNREADABLE:
                verdict = check_apart(found.path, deep=deep, marker=checkpoint.marker, parts=found.parts, own=own)
        assert verdict is not None  # noqa: S101 - it was checked
        if verdict.health in RESUMABLE:
            return Choice(found, verdict, tuple(passed), left_out=left_out)
        known[found.path, found.modified] = verdict
        passed.append((found, verdict))
    unreadable = next((p for p in passed if p[1].health is Health.UNREADABLE), None)
    broken = [p for p in passed if p[1].health in BROKEN]
    if unreadable is not None or len(broken) >= _TOO_MANY_BROKEN:
        return Choice(*(unreadable or broken[0]), doubtful=True, left_out=left_out)
    return Choice(None, None, tuple(passed), left_out=left_out)


def set_aside_broken(choice: Choice) -> list[tuple[Path, str]]:
    """Rename what is broken and newer than the choice; (new path, why). Nobody of the run may be writing.

    Empty files of no known kind are left alone, for they may be somebody's marks; what cannot be read or renamed stays
    where it is. Pointers such as DeepSpeed's ``latest`` then name the choice.
    """
    moved = []
    for found, verdict in choice.passed_over:
        if verdict.health in BROKEN and (verdict.format != "plain" or found.path.suffix in TENSOR_SUFFIXES):
            try:
                moved.append((set_aside(found.path, choice.newest), verdict.detail))
            except StoreError:
                continue
    return moved


def set_aside(path: Path, instead: Found | None = None) -> Path:
    """Rename a checkpoint so that nothing resumes from it; it is kept. Raises ``StoreError``.

    It goes beside the folder of the checkpoints, for trainings rotate what they find in there: Hugging Face's Trainer
    takes ``checkpoint-9.anything`` for step 9, and deletes older whole ones in its favour.
    ``instead``: what pointers to it shall name.
    """
    parts = [path] if os.path.lexists(path) else []
    try:
        parts = parts or [part for part in path.parent.iterdir() if tensorflow.prefix_of(part.name) == path.name]
        target = _move(parts or [path], path)
    except OSError as exc:
        raise StoreError(f"cannot set the checkpoint {path} aside: {exc.strerror or exc}") from exc
    repoint(path.parent, path.name, instead.path.name if instead is not None else None)
    return target


def _move(parts: list[Path], path: Path) -> Path:
    """To ``<folder>.set-aside/``, or where that is impossible beside it under another name. Raises ``OSError``."""
    inside = path.parent.resolve()
    folder = inside.parent / f"{inside.name}{ASIDE}"
    suffix = f"-{time.time_ns() // 1_000_000}"
    try:
        if (inside / "job.sbatch").exists():
            raise OSError(f"{folder} would lie among the runs")
        folder.mkdir(mode=0o755, exist_ok=True)
        for part in parts:
            part.rename(folder / f"{part.name}{suffix}")
    except FileNotFoundError:
        raise
    except OSError:  # a folder that is not ours, or another file system
        with contextlib.suppress(OSError):
            folder.rmdir()
        folder, suffix = path.parent, f"{SET_ASIDE}{suffix[1:]}"
        for part in parts:
            if os.path.lexists(part):
                part.rename(folder / f"{part.name}{suffix}")
    return folder / f"{path.name}{suffix}"


def _candidates(names: Iterable[Named]) -> Iterator[Found]:
    groups: dict[Path, list[Named]] = {}
    for one in names:
        prefix = tensorflow.prefix_of(one.path.name)
        if prefix is not None:
            groups.setdefault(one.path.with_name(prefix), []).append(one)
        else:
            yield Found(one.path, step_of(one.path.stem if one.is_file else one.path.name), one.modified)
    for path, parts in groups.items():
        names_of_parts = frozenset(part.path.name for part in parts)
        yield Found(path, step_of(path.name), max(part.modified for part in parts), names_of_parts)
