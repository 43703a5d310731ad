"""Doubles for plugin authors and unit tests: a Slurm in memory with a hand-driven clock."""

from slurmtrain.testing.clock import ManualClock
from slurmtrain.testing.memory_model import Behaviour, MemoryConfig, MemoryPartition, SignalSent
from slurmtrain.testing.memory_slurm import Call, Fault, FaultKind, MemorySlurm

__all__ = [
    "Behaviour", "Call", "Fault", "FaultKind", "ManualClock", "MemoryConfig", "MemoryPartition", "MemorySlurm",
    "SignalSent",
]  # fmt: skip
