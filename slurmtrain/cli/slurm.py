"""Slurm as the commands reach it."""

from __future__ import annotations

import os

from slurmtrain.config.environment import submission_environment
from slurmtrain.hosts.local import LocalHost
from slurmtrain.slurm.cli_client import CliSlurmClient


def open_slurm() -> CliSlurmClient:
    """Slurm's commands here, in an environment that a job may inherit."""
    return CliSlurmClient(LocalHost(), environ=submission_environment(os.environ))
