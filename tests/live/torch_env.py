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


# What the tests of checkpoints and of frameworks need beside it. DeepSpeed looks for torch while it is built.
FRAMEWORKS = ("safetensors==0.8.0", "lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0")
BUILT = ("deepspeed==0.19.8",)


@pytest.fixture(scope="session")
def torch_python(cluster_session: Cluster) -> Path:
    """A Python with PyTorch that the researcher can run, installed once beside the cluster."""
    return _python(cluster_session, TORCH, [])


@pytest.fixture(scope="session")
def framework_python(cluster_session: Cluster) -> Path:
    """The same with DeepSpeed, Lightning, Transformers and accelerate; installed when the first test wants it."""
    wanted = " ".join([TORCH, *FRAMEWORKS, *BUILT])
    return _python(cluster_session, wanted, [[*FRAMEWORKS, "setuptools>=78"], ["--no-build-isolation", *BUILT]])


def _python(cluster: Cluster, wanted: str, more: list[list[str]]) -> Path:
    if TORCH == "none":
        pytest.skip("SLURMTRAIN_TEST_TORCH=none: the tests with PyTorch were NOT run")
    venv = Path(cluster.facts["dir"]) / "venv-torch"
    with (venv.parent / ".venv-torch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = venv / ".installed"
        there = stamp.read_text(encoding="utf-8") if stamp.exists() else ""
        if not there.startswith(TORCH):
            _run(["/usr/bin/python3", "-m", "venv", "--clear", str(venv)])
            _install(venv, [TORCH, "numpy"])
            stamp.write_text(there := TORCH, encoding="utf-8")
        if not there.startswith(wanted):
            for packages in more:
                _install(venv, packages)
            stamp.write_text(wanted, encoding="utf-8")
    return venv / "bin" / "python"


def _install(venv: Path, packages: list[str]) -> None:
    _run([str(venv / "bin" / "pip"), "install", "--quiet", *packages])


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500, umask=0o022, check=False)
    if done.returncode != 0:
        pytest.fail(
            f"{TORCH} and the frameworks could not be installed, so the tests with them cannot run: "
            f"{(done.stderr or done.stdout).strip()[-600:]}\n"
            "Name another build in SLURMTRAIN_TEST_TORCH, or set it to none to leave these tests out."
        )
