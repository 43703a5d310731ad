"""What is wrong with a job file or a setting: collected, then told all at once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from slurmtrain.config.nodes import Place
from slurmtrain.errors import SpecError

_SHOWN = 20  # a file with more mistakes than this needs another look as a whole


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: where it stands, which key, what was expected."""

    place: Place | None
    path: str
    message: str

    def __str__(self) -> str:
        place = str(self.place or "")
        path = "" if place == f"--set {self.path}" else self.path  # said once
        return ": ".join(part for part in (place, path, self.message) if part)


@dataclass(slots=True)
class Problems:
    """Collects mistakes, so that a person sees all of them in one go."""

    found: list[Problem] = field(default_factory=list)

    def add(self, place: Place | None, path: str, message: str) -> None:
        problem = Problem(place, path, message)
        if problem not in self.found:
            self.found.append(problem)

    def __bool__(self) -> bool:
        return bool(self.found)

    def has(self, path: str) -> bool:
        """Whether this key, or a part of it, is known to be wrong already."""
        return any(p.path == path or p.path.startswith((f"{path}.", f"{path}[")) for p in self.found)

    def raise_if_any(self, what: str) -> None:
        """Raise one ``SpecError`` that lists every mistake; ``what`` names the thing that is wrong."""
        if not self.found:
            return
        found = sorted(
            self.found,
            key=lambda p: (p.place is None, str(p.place and p.place.source), (p.place and p.place.line) or 0),
        )
        if len(found) == 1:
            raise SpecError(str(found[0]))
        lines = [f"{what} has {len(found)} problems:", *(f"  {problem}" for problem in found[:_SHOWN])]
        if len(found) > _SHOWN:
            lines.append(f"  … and {len(found) - _SHOWN} more")
        raise SpecError("\n".join(lines))


def _order(problem: Problem) -> tuple[bool, str, int]:
    place = problem.place
    return (True, "", 0) if place is None else (False, place.source, place.line or 0)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    candidates = list(known)
    normal = word.strip().lower().replace("-", "_")
    if normal in candidates:
        return normal
    matches = difflib.get_close_matches(normal, candidates, n=1, cutoff=0.6)
    return matches[0] if matches else None
