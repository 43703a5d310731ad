"""Python interpreters for the unit tests: Debian's, 3.10, and the newest that this machine has."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

OLDEST = (3, 10)
NEWEST_TRIED = (3, 14)


def version_of(python: str) -> tuple[int, int] | None:
    """(major, minor) of an interpreter that can make virtual environments; None otherwise."""
    code = "import sys, ensurepip; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, cwd="/")
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.fullmatch(r"(\d+) (\d+)\s*", done.stdout)
    return (int(found[1]), int(found[2])) if found and done.returncode == 0 else None


def interpreters() -> dict[tuple[int, int], str]:
    """Version -> path of every usable CPython from 3.10 on, in pyenv's folders and on PATH."""
    found: dict[tuple[int, int], str] = {}
    for path in _candidates():
        version = version_of(str(path))
        if version and OLDEST <= version <= NEWEST_TRIED:
            found.setdefault(version, str(path))
    return found


def _candidates() -> list[Path]:
    """pyenv's real interpreters before PATH, as pyenv's shims on PATH may name one that is not active."""
    paths = [Path("/usr/bin/python3"), *sorted(Path.home().glob(".pyenv/versions/3.*/bin/python3"))]
    for folder in os.environ.get("PATH", "").split(":"):
        if folder and "shims" not in folder:
            paths += [Path(folder) / f"python3.{minor}" for minor in range(OLDEST[1], NEWEST_TRIED[1] + 1)]
    return [path for path in paths if path.exists()]


def chosen() -> dict[tuple[int, int], str]:
    """The interpreters to test with: the oldest supported and the newest; Debian's own where the oldest is not here."""
    found = interpreters()
    oldest = OLDEST if OLDEST in found else version_of("/usr/bin/python3")
    wanted = {version for version in (oldest, max(found, default=None)) if version in found}
    return {version: found[version] for version in sorted(wanted)}
