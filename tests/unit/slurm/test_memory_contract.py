"""The Slurm in memory keeps the contract that the real one keeps (tests/live/test_slurm_client.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurmtrain.testing.contract import SlurmClientContract
from slurmtrain.testing.stage import QUICK, MemoryStage


class TestMemorySlurm(SlurmClientContract):
    @pytest.fixture
    def stage(self, tmp_path: Path) -> MemoryStage:
        return MemoryStage(directory=tmp_path)


class TestMemorySlurmWithoutAccounting(SlurmClientContract):
    accounting = False

    @pytest.fixture
    def stage(self, tmp_path: Path) -> MemoryStage:
        return MemoryStage(replace(QUICK, accounting=False), directory=tmp_path)
