"""A training as a process of its own, with nothing of slurmtrain but the helper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurmtrain import training

SOURCE = Path(training.__file__)


def python(code: str, folder: Path, **env: str) -> subprocess.Popen[str]:
    """A training that has the helper as a copied file and nothing else of slurmtrain."""
    (folder / "helper.py").write_text(SOURCE.read_text(encoding="utf-8"), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK"))}
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**kept, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return out.strip()
