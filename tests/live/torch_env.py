"""A Python with PyTorch for live tests, made once beside the cluster."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import environments
import pytest
from cluster import Cluster

# Another build of the same release may be named here ("none" leaves these tests out, and says so).
TORCH = os.environ.get("SLURMTRAIN_TEST_TORCH", "torch==2.13.0")


# What the tests of checkpoints need beside it. DeepSpeed looks for torch while it is built.
FORMATS = ("safetensors==0.8.0", "setuptools>=78")
BUILT = ("deepspeed==0.19.8",)
# Frameworks, and what requeues by itself.
FRAMEWORKS = ("lightning==2.6.6", "transformers==5.24.0", "accelerate==1.15.0", "submitit==1.5.4", "keras==3.15.1")
JAX = ("jax==0.10.2",)


@pytest.fixture(scope="session")
def torch_python(cluster_session: Cluster) -> Path:
    """A Python with PyTorch that the researcher can run, installed once beside the cluster."""
    return _python(cluster_session, [])


@pytest.fixture(scope="session")
def framework_python(cluster_session: Cluster) -> Path:
    """The same with Lightning, Transformers, accelerate, submitit, Keras and JAX; installed when a test wants it."""
    return _python(cluster_session, [FRAMEWORKS, JAX])


@pytest.fixture(scope="session")
def formats_python(cluster_session: Cluster) -> Path:
    """The same with DeepSpeed and safetensors, too."""
    return _python(cluster_session, [FRAMEWORKS, FORMATS, BUILT])


def _python(cluster: Cluster, more: list[tuple[str, ...]]) -> Path:
    if TORCH == "none":
        pytest.skip("SLURMTRAIN_TEST_TORCH=none: the tests with PyTorch were NOT run")
    venv = Path(cluster.facts["dir"]) / "venv-torch"
    with (venv.parent / ".venv-torch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_for = venv / ".made-for"
        try:
            if not made_for.exists() or made_for.read_text(encoding="utf-8") != TORCH:
                environments.create(venv)
                environments.install(venv, (TORCH, "numpy"))
                made_for.write_text(TORCH, encoding="utf-8")
            for packages in more:
                if environments.lacks(venv, packages):
                    options = ["--no-build-isolation"] if packages == BUILT else []
                    environments.install(venv, packages, options)
        except environments.CannotInstall as exc:
            pytest.fail(
                f"{TORCH} and the frameworks could not be installed, so the tests with them cannot run: {exc}\n"
                "Name another build in SLURMTRAIN_TEST_TORCH, or set it to none to leave these tests out."
            )
    return venv / "bin" / "python"
