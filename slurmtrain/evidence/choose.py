"""Which collectors a run gets: those of the search order, the first of a name wins, the bundled ones last.

They are code that runs on the nodes with the user's rights: one that others may change is left out, and so are those of
a project that the user does not trust. Each of them is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import SpecError
from slurmtrain.evidence.collector import Collector, read_collector
from slurmtrain.plugins.search import Place
from slurmtrain.resources import bundled, why_untrusted

KIND = "collectors"
MAX_COLLECTORS = 200


@dataclass(frozen=True, slots=True)
class Chosen:
    """The collectors in the order in which they run, and a sentence for each one that is left out."""

    collectors: tuple[Collector, ...]
    notes: tuple[str, ...] = ()


def choose_collectors(places: Iterable[Place], trusted: Sequence[Path] = ()) -> Chosen:
    """Never raises for a collector that cannot be used."""
    found: dict[str, Collector] = {}
    notes: list[str] = []
    for origin, path in _files(places, trusted, notes):
        try:
            collector = read_collector(path, origin)
        except SpecError as exc:
            notes.append(f"{exc}; it is left out")
            continue
        found.setdefault(collector.name, collector)
    chosen = sorted(found.values(), key=lambda c: c.name)
    if len(chosen) > MAX_COLLECTORS:
        notes.append(f"there are {len(chosen)} collectors; the first {MAX_COLLECTORS} are used")
    return Chosen(tuple(chosen[:MAX_COLLECTORS]), tuple(notes))


def _files(places: Iterable[Place], trusted: Sequence[Path], notes: list[str]) -> Iterator[tuple[str, Path]]:
    for place in places:
        folder = place.folder / KIND
        files = _list(folder)
        if files and place.origin == "project" and not _is_trusted(folder, trusted):
            notes.append(f'{folder} holds code that is not run; to allow it, add its project to trust = ["…"]')
            continue
        for path in files:
            reason = why_untrusted(path, trusted)
            if reason:
                notes.append(f"the {place.origin}'s collector {path} is not used: {reason}")
            else:
                yield place.origin, path
    for path in _list(bundled("plugins") / KIND):
        yield "bundled", path


def _list(folder: Path) -> list[Path]:
    hidden = (".", "_")
    return [p for p in sorted(folder.glob("*")) if p.is_file() and not p.name.startswith(hidden) and p.suffix != ".md"]


def _is_trusted(folder: Path, trusted: Sequence[Path]) -> bool:
    return any(folder.resolve().is_relative_to(path.resolve()) for path in trusted)
