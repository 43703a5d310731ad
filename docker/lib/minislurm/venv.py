"""The cluster's virtual environment: slurmtrain as users would have it, installed, not editable."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from minislurm import packages
from minislurm.errors import MiniSlurmError
from minislurm.say import say, warn
from minislurm.settings import REPO

SOURCES = ("pyproject.toml", "README.md", "LICENSE", "src", "slurmtrain", "templates", "plugins")


def source_hash(repo: Path, flavour: str) -> str:
    """A digest over everything the wheel is built from, and the Python it is for."""
    digest = hashlib.sha256(flavour.encode())
    for name in SOURCES:
        top = repo / name
        files = sorted(p for p in top.rglob("*") if p.is_file()) if top.is_dir() else [top]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(repo)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def ensure(venv: Path, extras: Iterable[str], flavour: str, install: Callable[[str], None]) -> bool:
    """Have `install(extras)` put the checkout into `venv`, if its sources changed or an extra is missing.

    Extras come as "" or "[a,b]" and those of earlier calls are kept. `flavour` names the Python the
    environment is for. Returns whether something was installed.
    """
    if not (REPO / "pyproject.toml").exists():
        warn("the checkout has no pyproject.toml yet; the cluster starts without slurmtrain.")
        return False
    stamp = venv / ".slurmtrain-installed"
    before, sources = _read_stamp(stamp), source_hash(REPO, flavour)
    wanted = sorted({*before[1:], *extras})
    if before == [sources, *wanted]:
        return False
    say(f"installing slurmtrain into {venv} ...")
    install(f"[{','.join(wanted)}]" if wanted else "")
    stamp.write_text("\n".join([sources, *wanted]), encoding="ascii")
    return True


def install_here(venv: Path, extras: str) -> None:
    """Install the checkout with this machine's Python."""
    create(venv)
    pip_install(venv, [f"{REPO}{extras}"])


def _read_stamp(stamp: Path) -> list[str]:
    """The sources' digest and the extras of the last installation; empty without one."""
    try:
        return stamp.read_text(encoding="ascii").split()
    except OSError:
        return []


def create(venv: Path, python: str = "/usr/bin/python3") -> None:
    """A virtual environment with pip; Debian splits its module off into python3-venv."""
    if (venv / "bin" / "pip").exists():
        return
    if python == "/usr/bin/python3" and not _has_ensurepip(python):
        packages.install(["python3-venv"])
    _run([python, "-m", "venv", "--clear", str(venv)], f"the virtual environment {venv}")


def _has_ensurepip(python: str) -> bool:
    return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, timeout=60).returncode == 0


def pip_install(venv: Path, what: list[str]) -> None:
    """pip install into a virtual environment, from the index that the caller's environment names."""
    argv = [str(venv / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--upgrade", *what]
    _run(argv, " ".join(what))


def _run(argv: list[str], what: str) -> None:
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    old = os.umask(0o022)  # other users run what is installed here
    try:
        done = subprocess.run(argv, capture_output=True, text=True, env=env, timeout=1800, cwd="/")
    finally:
        os.umask(old)
    if done.returncode != 0:
        raise MiniSlurmError(f"{what} could not be installed: {reason(done.stderr + done.stdout)}")


def reason(output: str) -> str:
    """pip's own last lines are hints; the cause is the last line that names an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for mark in ("Error: ", "ERROR: ", "error: "):
        if found := [line for line in lines if mark in line]:
            return found[-1]
    return lines[-1] if lines else "no message"
