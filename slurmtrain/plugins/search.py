"""Where templates, rule packs and plugins are looked for, and which of them may be used.

Order, the first hit wins: command line → project (``.slurmtrain/`` beside ``slurmtrain.toml``) → ``$SLURMTRAIN_PATH`` →
user → site → entry points → bundled. A place has the folders ``templates``, ``rules``, ``formats`` and ``plugins``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import NotFoundError
from slurmtrain.resources import bundled, require_trusted

SITE_FOLDERS = (Path("/etc/slurmtrain"), Path(sys.prefix) / "etc" / "slurmtrain")

PROJECT_FOLDER = ".slurmtrain"  # beside slurmtrain.toml


@dataclass(frozen=True, slots=True)
class Place:
    """One folder of the search order. ``origin`` says which kind of place it is."""

    origin: str
    folder: Path


def find_places(
    environ: Mapping[str, str],
    *,
    given: Sequence[Path] = (),
    project: Path | None = None,
    user: Path | None = None,
    site: Sequence[Path] = SITE_FOLDERS,
) -> list[Place]:
    """Places that exist, the first one first. Raises ``NotFoundError`` for one that was named and is not there."""
    for folder in given:
        if not folder.is_dir():
            raise NotFoundError(f"there is no folder {str(folder)!r} to take templates and rules from")
    candidates = [Place("command line", folder) for folder in given]
    if project is not None:
        candidates.append(Place("project", project / PROJECT_FOLDER))
    named = [Path(part) for part in environ.get("SLURMTRAIN_PATH", "").split(":") if part]
    candidates += [Place("SLURMTRAIN_PATH", folder) for folder in named if folder.is_absolute()]
    if user is not None:
        candidates.append(Place("user", user))
    candidates += [Place("site", folder) for folder in site]
    return [place for place in candidates if place.folder.is_dir()]


def find_folders(places: Iterable[Place], kind: str, trusted: Sequence[Path] = ()) -> list[Path]:
    """The ``templates``, ``rules``, ``formats`` or ``plugins`` folders of the places, the bundled one left out.

    Raises ``RefusedError`` where others may change a folder or a file in it: passing over it in silence would change
    what a job does.
    """
    folders = []
    for place in places:
        folder = place.folder / kind
        if folder.is_dir():
            require_trusted(folder, f"the {place.origin}'s folder", trusted)
            for path in sorted(folder.rglob("*")):
                require_trusted(path, f"the {place.origin}'s file", trusted)
            folders.append(folder)
    return folders


@dataclass(frozen=True, slots=True)
class Hit:
    """One file of that name, and whether one before it hides it."""

    name: str
    origin: str
    path: Path
    shadowed: bool


def find_hits(places: Iterable[Place], kind: str) -> list[Hit]:
    """Every file of a kind in search order, the bundled ones last: what ``list`` commands show."""
    hits: list[Hit] = []
    seen: set[str] = set()
    folders = [(place.origin, place.folder / kind) for place in places]
    bundled_folder = bundled("templates") if kind == "templates" else bundled("plugins") / kind
    for origin, folder in [*folders, ("bundled", bundled_folder)]:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                name = path.relative_to(folder).as_posix()
                hits.append(Hit(name, origin, path, name in seen))
                seen.add(name)
    return hits
