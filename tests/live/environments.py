"""Virtual environments that live tests make beside a cluster, once, for the researcher to run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

# Asked of the environment itself: what a record of ours says may have been undone since. A package whose RECORD is
# missing was being installed when its pip was killed.
_LACKS = """
import json, sys
from importlib.metadata import PackageNotFoundError, distribution
def lacks(wanted):
    name, _, version = wanted.partition("==")
    try:
        there = distribution(name.split(">")[0])
    except PackageNotFoundError:
        return True
    return there.files is None or bool(version) and there.version.split("+")[0] != version
print(json.dumps([wanted for wanted in json.loads(sys.argv[1]) if lacks(wanted)]))
"""


class CannotInstall(Exception):
    """pip or venv failed; the text is its own."""


def create(venv: Path) -> None:
    """An empty environment of Debian's Python, which every user can run; what was there is gone."""
    _run(["/usr/bin/python3", "-I", "-m", "venv", "--clear", str(venv)])


def lacks(venv: Path, packages: Sequence[str]) -> list[str]:
    """Those of `packages` (`name`, `name==version`, `name>=version`) that are not whole in the environment."""
    missing: list[str] = json.loads(_run([str(venv / "bin" / "python"), "-I", "-c", _LACKS, json.dumps(packages)]))
    return missing


def install(venv: Path, packages: Sequence[str], options: Sequence[str] = ()) -> None:
    """pip install; packages that the caller's environment names elsewhere (PYTHONPATH) count for nothing."""
    _run([str(venv / "bin" / "python"), "-I", "-m", "pip", "install", "--quiet", *options, *packages])


def _run(argv: list[str]) -> str:
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET")}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500, umask=0o022, check=False, env=kept)
    if done.returncode != 0:
        raise CannotInstall((done.stderr or done.stdout).strip()[-2000:])
    return done.stdout
