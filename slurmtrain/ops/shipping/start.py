"""Starting a process that ships: which program, with what around it. Standard library only: the agent uses it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmtrain.errors import StoreError

LEASE = "lease.json"
ERRORS = "errors.log"  # what a shipper that could not even start said


def find_program() -> list[str]:
    """How to call the slurmtrain that runs now, from anywhere."""
    script = Path(sys.executable).with_name("slurmtrain")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "slurmtrain"]


def start_beside_training(
    program: Sequence[str], run_dir: Path, env: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    """A shipper that says what a person should know on our output; None where the program is not to be had here.

    Raises ``StoreError`` where the run directory cannot be written.
    """
    words = [*program, "ship", run_dir.name, "--store", str(run_dir.parent.parent), "--in-job"]
    try:
        errors = (run_dir / "ship" / ERRORS).open("wb")
    except OSError as exc:
        raise StoreError(f"cannot write {run_dir / 'ship'}: {exc.strerror or exc}") from exc
    with errors:
        try:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=errors, env=dict(env), cwd="/")
        except OSError:
            return None


def start_for_store(store: Path) -> subprocess.Popen[bytes]:
    """A shipper of all runs that have something to send; it outlives us. Raises ``OSError``."""
    words = [*find_program(), "ship", "--all", "--store", str(store)]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True)
