"""A run's checkpoints for a person: which the next launch resumes from and why, which is kept, which were set aside.

Foretold by the same code with which the agent chooses (``agent.resume``); nothing is moved, nothing brought back.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints import tensorflow
from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.checkpoints.find import Choice, Found, Known, checkpoint_dir, choose, list_all
from slurmtrain.checkpoints.model import BROKEN, RESUMABLE, Health, Verdict
from slurmtrain.checkpoints.own import OWN_FORMATS
from slurmtrain.checkpoints.pin import find_missing, find_pinned, is_older_than_kept, pinned_names
from slurmtrain.checkpoints.pointers import ASIDE
from slurmtrain.core.decision import RunState
from slurmtrain.core.events import CheckpointSetAside
from slurmtrain.core.spec import Checkpoint
from slurmtrain.ops.timeline import RunView, as_time

_DEEP_S = 86400.0
_FRESH_S = 120.0  # a broken one that is younger may still be being written by a training that runs
_MAX_FILES = 20_000  # of one checkpoint whose sizes are added up; of a folder that are looked at
_MAX_ASIDE = 200  # that are told of
_ASIDE = re.compile(rf"(.+?)({re.escape(ASIDE)})?-\d{{13}}")  # as ``find.set_aside`` names them, with milliseconds
_TRAINS = frozenset({RunState.STARTING, RunState.RUNNING})


@dataclass(frozen=True, slots=True)
class Next:
    """What a launch would resume from now; ``found`` is None for the beginning.

    ``comes_back``: it was deleted, and is linked back to its place first. ``doubtful``: it does not pass its check.
    """

    found: Found | None
    verdict: Verdict | None
    why: str
    doubtful: bool = False
    comes_back: bool = False

    @property
    def step(self) -> int | None:
        return _step(self.found, self.verdict) if self.found is not None else None

    def to_dict(self) -> dict[str, Any]:
        path = str(self.found.path) if self.found is not None else None
        return {
            "path": path, "step": self.step, "why": self.why, "doubtful": self.doubtful,
            "comes_back": self.comes_back,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint that lies where the training writes them; ``size`` in bytes, None where it cannot be told."""

    found: Found
    verdict: Verdict
    size: int | None
    resume: bool
    kept: bool
    fresh: bool = False  # broken, but perhaps because it is being written

    @property
    def step(self) -> int | None:
        """What its content tells, else its name."""
        return _step(self.found, self.verdict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.found.path),
            "step": self.step,
            "written_at": self.found.modified,
            "size_bytes": self.size,
            "health": self.verdict.health.value,
            "format": self.verdict.format,
            "detail": self.verdict.detail,
            "deep": self.verdict.deep,
            "resume": self.resume,
            "kept": self.kept,
        }


@dataclass(frozen=True, slots=True)
class Aside:
    """One that was moved out of the training's way, and where it lies; of several files what their names share."""

    path: Path
    name: str
    at: float
    size: int | None
    why: str

    def to_dict(self) -> dict[str, Any]:
        where = {"path": str(self.path), "name": self.name, "set_aside_at": self.at}
        return {**where, "size_bytes": self.size, "why": self.why}


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a run's folder. ``kept_in`` is None where nothing is kept from deletion."""

    folder: Path
    next: Next
    found: tuple[Found, ...]  # newest first
    known: Known
    kept_in: Path | None
    kept: frozenset[str]
    aside: tuple[Aside, ...]
    left_out: str = ""  # a sentence about names that were not looked at


def look_at(view: RunView, checkpoint: Checkpoint) -> Look:
    """What there is and what is next. Never raises; as long as a launch takes to choose."""
    run_dir, known = view.run.path, Known()
    found, left_out = list_all(run_dir, checkpoint)
    return Look(
        folder=checkpoint_dir(run_dir, checkpoint),
        next=_foresee(run_dir, checkpoint, known, comes_back=not view.state.ended),
        found=tuple(found),
        known=known,
        kept_in=find_pinned(run_dir, checkpoint),
        kept=frozenset(pinned_names(run_dir, checkpoint)),
        aside=tuple(_find_aside(view, checkpoint)),
        left_out=left_out,
    )


def list_checkpoints(view: RunView, checkpoint: Checkpoint, look: Look, *, last: int, deep: bool) -> Iterator[Listed]:
    """The ``last`` newest with verdicts, one after the other as they are checked: ``deep`` may take hours."""
    trains = view.state.state in _TRAINS
    for found in look.found[:last]:
        verdict = None if deep else look.known.get((found.path, found.modified))
        if verdict is None:
            limit = {"limit_s": _DEEP_S} if deep else {}
            own = view.run.path / OWN_FORMATS
            verdict = check_apart(found.path, deep=deep, marker=checkpoint.marker, parts=found.parts, own=own, **limit)
        fresh = trains and verdict.health in BROKEN and time.time() - found.modified < _FRESH_S
        resume = look.next.found is not None and look.next.found.path == found.path
        kept = found.path.name in look.kept or bool(found.parts & look.kept)
        yield Listed(found, verdict, _measure(found), resume, kept, fresh)


def _foresee(run_dir: Path, checkpoint: Checkpoint, known: Known, *, comes_back: bool) -> Next:
    """``comes_back``: a launch of this run chooses, which brings back what is kept."""
    choice = choose(run_dir, checkpoint, known=known)
    if choice.newest is not None and choice.verdict is not None:
        known[choice.newest.path, choice.newest.modified] = choice.verdict
    missing = find_missing(run_dir, checkpoint) if comes_back else None
    if missing is not None and is_older_than_kept(run_dir, checkpoint, choice):
        own = run_dir / OWN_FORMATS
        verdict = check_apart(missing.path, marker=checkpoint.marker, parts=missing.parts, own=own)
        if verdict.health in RESUMABLE or not checkpoint.check:
            back = replace(missing, path=checkpoint_dir(run_dir, checkpoint) / missing.path.name)
            return Next(back, verdict, "it was deleted, but is kept and comes back", comes_back=True)
    return Next(choice.newest, choice.verdict, _say_why(choice, checkpoint, known), choice.doubtful)


def _say_why(choice: Choice, checkpoint: Checkpoint, known: Known) -> str:
    passed, verdict = len(choice.passed_over), choice.verdict
    if choice.newest is None:
        many = f"none of the {passed} checkpoints" if passed > 1 else "the only checkpoint"
        return "there is no checkpoint" if not passed else f"{many} is {'' if passed > 1 else 'not '}whole"
    if verdict is None:
        return "the newest by its name, for checkpoint.check is off"
    if choice.doubtful and verdict.health is Health.UNREADABLE:
        return f"it cannot be read now ({verdict.detail}), and a launch that fails loses less than one that begins anew"
    if choice.doubtful:
        broken = sum(one.health in BROKEN for one in known.values())
        return f"none of the {broken} newest passes the check, so the check is in doubt and the newest is handed out"
    newer = f"; {passed} newer {'one is' if passed == 1 else 'ones are'} not"
    if verdict.health is Health.VALID:
        return f"the newest that is whole{newer}" if passed else "the newest, and whole"
    sort = "as far as can be told: its format is not known here, and it is not empty"
    return f"the newest that is whole, {sort}{newer}" if passed else f"the newest, and whole {sort}"


def _step(found: Found, verdict: Verdict | None) -> int | None:
    return verdict.step if verdict is not None and verdict.step is not None else found.step


def _find_aside(view: RunView, checkpoint: Checkpoint) -> list[Aside]:
    """The newest first; several files of one checkpoint are one."""
    folder = _resolve(str(checkpoint_dir(view.run.path, checkpoint) / "_")).parent
    noted = {_resolve(e.path): e.why for e in view.events if isinstance(e, CheckpointSetAside)}
    told = {path.parent for path in noted if path.parent.name.endswith(ASIDE)}
    groups: dict[tuple[Path, str], list[Path]] = {}
    for place in {folder, folder.with_name(f"{folder.name}{ASIDE}"), *told}:
        for path in _entries(place):
            match = _ASIDE.fullmatch(path.name)
            if match is not None and (match[2] or place.name.endswith(ASIDE)):
                name = tensorflow.prefix_of(match[1]) or match[1]
                groups.setdefault((place / name, path.name[match.end(1) :]), []).append(path)
    newest = sorted(groups.items(), key=lambda group: (group[0][1][-13:], group[0][0].name), reverse=True)
    return [_to_aside(named, suffix, parts, noted) for (named, suffix), parts in newest[:_MAX_ASIDE]]


def _to_aside(named: Path, suffix: str, parts: list[Path], noted: Mapping[Path, str]) -> Aside:
    at = as_time(int(suffix[-13:]) / 1000) or 0.0
    sizes = [_measure(Found(part, None, at)) for part in parts]
    size = None if None in sizes else sum(filter(None, sizes))
    path = named.with_name(f"{named.name}{suffix}")
    return Aside(path, named.name, at, size, noted.get(path, ""))


def _resolve(path: str) -> Path:
    try:
        return Path(path).parent.resolve() / Path(path).name
    except (OSError, ValueError, RuntimeError):
        return Path(path)


def _entries(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in islice(entries, _MAX_FILES) if ASIDE in entry.path]
    except (OSError, ValueError):  # a journal may name any nonsense
        return []


def _measure(found: Found) -> int | None:
    """Bytes that its files say they have; None where that cannot be told, or there are too many."""
    size = count = 0
    try:
        for path in [found.path.parent / part for part in found.parts] or [found.path]:
            if not path.is_dir():
                size += path.stat().st_size
                continue
            for root, _folders, names in os.walk(path):
                count += len(names)
                if count > _MAX_FILES:
                    return None
                size += sum(os.lstat(os.path.join(root, name)).st_size for name in names)  # noqa: PTH118 - faster
    except OSError:
        return None
    return size
