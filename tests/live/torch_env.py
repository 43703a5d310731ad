"""A Python with PyTorch for live tests, made once beside the cluster."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster

# Another build of the same release may be named here ("none" leaves these tests out, and says so).
TORCH = os.environ.get("SLURMTRAIN_TEST_TORCH", "torch==2.13.0")


@pytest.fixture(scope="session")
def torch_python(cluster_session: Cluster) -> Path:
    """A Python with PyTorch that the researcher can run, installed once beside the cluster."""
    if TORCH == "none":
        pytest.skip("SLURMTRAIN_TEST_TORCH=none: the tests with PyTorch were NOT run")
    venv = Path(cluster_session.facts["dir"]) / "venv-torch"
    with (venv.parent / ".venv-torch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = venv / ".installed"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != TORCH:
            _install(venv)
            stamp.write_text(TORCH, encoding="utf-8")
    return venv / "bin" / "python"


def _install(venv: Path) -> None:
    for argv in (
        ["/usr/bin/python3", "-m", "venv", "--clear", str(venv)],
        [str(venv / "bin" / "pip"), "install", "--quiet", TORCH, "numpy"],
    ):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=1500, umask=0o022, check=False)
        if done.returncode != 0:
            pytest.fail(
                f"{TORCH} could not be installed, so the tests with PyTorch cannot run: "
                f"{(done.stderr or done.stdout).strip()[-600:]}\n"
                "Name another build in SLURMTRAIN_TEST_TORCH, or set it to none to leave these tests out."
            )
