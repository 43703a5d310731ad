"""The closed table of failure causes: 58 leaves, each with what it means and what helps.

The order is that of the taxonomy. A cause that is not in this table does not exist: rule files are checked against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from slurmtrain.core.taxonomy.devices import COMM, GPU_APP, GPU_HW
from slurmtrain.core.taxonomy.model import ACTIONS, CLASSES, RUNGS, Cause
from slurmtrain.core.taxonomy.programs import EXTERNAL, USER_CODE
from slurmtrain.core.taxonomy.scheduling import NONE, RESOURCES, SCHEDULER
from slurmtrain.core.taxonomy.storage import ENVIRONMENT, STORAGE

__all__ = ["ACTIONS", "CAUSES", "CLASSES", "FAMILIES", "RUNGS", "Cause", "get_cause"]

_TABLE = (*SCHEDULER, *RESOURCES, *GPU_APP, *GPU_HW, *COMM, *STORAGE, *ENVIRONMENT, *USER_CODE, *EXTERNAL, *NONE)

CAUSES: Mapping[str, Cause] = MappingProxyType({cause.name: cause for cause in _TABLE})
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(cause.family for cause in _TABLE))


def get_cause(name: str) -> Cause:
    """The cause called `name`; KeyError for a name outside the taxonomy."""
    return CAUSES[name]
