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


# What the tests of checkpoints need beside it. DeepSpeed looks for torch while it is built.
FORMATS = ("safetensors==0.8.0", "setuptools>=78")
BUILT = ("deepspeed==0.19.8",)
# Frameworks, and what requeues by itself.
FRAMEWORKS = ("lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0", "submitit==1.5.4", "keras==3.15.1")

KERAS = ("keras==3.15.1",)
JAX = ("jax==0.10.2",)


@pytest.fixture(scope="session")
def torch_python(cluster_session: Cluster) -> Path:
    """A Python with PyTorch that the researcher can run, installed once beside the cluster."""
    return _python(cluster_session, [])


@pytest.fixture(scope="session")
def framework_python(cluster_session: Cluster) -> Path:
    """The same with Lightning, Transformers, accelerate, submitit and JAX; installed when the first test wants it."""
    return _python(cluster_session, [FRAMEWORKS, JAX])


@pytest.fixture(scope="session")
def formats_python(cluster_session: Cluster) -> Path:
    """The same with DeepSpeed and safetensors, too."""
    return _python(cluster_session, [FRAMEWORKS, FORMATS, BUILT])


@pytest.fixture(scope="session")
def progress_python(cluster_session: Cluster) -> Path:
    """That of the frameworks with Keras, too."""
    return _python(cluster_session, [FRAMEWORKS, KERAS])


def _python(cluster: Cluster, more: list[tuple[str, ...]]) -> Path:
    if TORCH == "none":
        pytest.skip("SLURMTRAIN_TEST_TORCH=none: the tests with PyTorch were NOT run")
    venv = Path(cluster.facts["dir"]) / "venv-torch"
    with (venv.parent / ".venv-torch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = venv / ".installed"
        there = stamp.read_text(encoding="utf-8").splitlines() if stamp.exists() else []
        if there[:1] != [TORCH]:
            _run(["/usr/bin/python3", "-m", "venv", "--clear", str(venv)])
            there = _install(venv, stamp, [], (TORCH, "numpy"))
        for packages in more:
            there = _install(venv, stamp, there, packages)
    return venv / "bin" / "python"


def _install(venv: Path, stamp: Path, there: list[str], packages: tuple[str, ...]) -> list[str]:
    """Unless they are there: one line of the stamp for each group of packages."""
    line = packages[0] if not there else " ".join(packages)
    if line in there:
        return there
    built = ["--no-build-isolation"] if packages == BUILT else []
    _run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *built, *packages])
    stamp.write_text("\n".join([*there, line]) + "\n", encoding="utf-8")
    return [*there, line]


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1500, umask=0o022, check=False)
    if done.returncode != 0:
        pytest.fail(
            f"{TORCH} and the frameworks could not be installed, so the tests with them cannot run: "
            f"{(done.stderr or done.stdout).strip()[-600:]}\n"
            "Name another build in SLURMTRAIN_TEST_TORCH, or set it to none to leave these tests out."
        )
