"""Files that ship with slurmtrain: ``templates`` and ``plugins``, in a wheel or in a checkout."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.errors import NotFoundError


def bundled(folder: str) -> Path:
    """The bundled ``templates`` or ``plugins`` directory, wherever this installation keeps it."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "_bundled" / folder, package.parent / folder):
        if candidate.is_dir():
            return candidate
    raise NotFoundError(f"the folder {folder!r} that ships with slurmtrain is missing beside {package}: install slurmtrain again")
