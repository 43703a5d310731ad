"""The contract over the real pyslurm, where a Python has one that fits the cluster's Slurm.

    SLURMTRAIN_PYSLURM_PYTHON=/path/to/python [LD_LIBRARY_PATH=...] pytest tests/live/test_pyslurm_client.py

Debian's 22.05 has no pyslurm on PyPI, so the test is left out unless that variable names an interpreter.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster import Cluster
from live_stage import LiveStage, ResearcherHost

from slurmtrain.core.jobstate import is_running
from slurmtrain.slurm.pyslurm_client import PySlurmClient
from slurmtrain.testing.contract import SlurmClientContract
from slurmtrain.testing.expect import started

PYTHON = os.environ.get("SLURMTRAIN_PYSLURM_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="SLURMTRAIN_PYSLURM_PYTHON names no Python with pyslurm")


@pytest.fixture
def stage(cluster: Cluster, store: Path) -> LiveStage:
    stage = LiveStage(cluster, store)
    library = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
    stage.client = PySlurmClient(
        ResearcherHost(cluster),
        stage.client,
        python=PYTHON,
        environ={**cluster.user_env(), **library},
        user_id=int(cluster.facts["user"]["uid"]),
    )
    return stage


@pytest.mark.needs_accounting
class TestPySlurmClient(SlurmClientContract):
    pass


def test_it_really_is_pyslurm(stage: LiveStage) -> None:
    job_id = stage.submit()
    started(stage, job_id)
    assert isinstance(stage.client, PySlurmClient)
    rows = stage.client._ask("load_jobs", "look", user_id=None)
    assert str(job_id) in {row["JobID"] for row in rows}
    assert is_running(stage.client.observe([job_id]).jobs[job_id].state)
