"""Each way to reach Slurm takes what the protocol says: what one of them refuses would fail on some sites only."""

from __future__ import annotations

import inspect

import pytest

from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.pyslurm_client import PySlurmClient
from slurmtrain.testing import MemorySlurm

METHODS = sorted(name for name, member in vars(SlurmClient).items() if inspect.isfunction(member) and name[0] != "_")


@pytest.mark.parametrize("client", [CliSlurmClient, PySlurmClient, MemorySlurm])
@pytest.mark.parametrize("method", METHODS)
def test_a_client_takes_the_same_parameters(client: type, method: str) -> None:
    wanted = inspect.signature(getattr(SlurmClient, method)).parameters
    taken = inspect.signature(getattr(client, method)).parameters
    assert [(p.name, p.kind) for p in wanted.values()] == [
        (p.name, p.kind) for p in list(taken.values())[: len(wanted)]
    ]
    more = list(taken.values())[len(wanted) :]
    assert all(parameter.default is not inspect.Parameter.empty for parameter in more)
