"""The key ``components``: a list of groups of resources, read with the rules of ``resources``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping as MappingType
from typing import Any

from slurmtrain.config.nodes import Mapping, Node, Sequence, describe, shown
from slurmtrain.config.parsers import Parser
from slurmtrain.config.problems import closest
from slurmtrain.core.spec import Component

_MOST = 127  # Slurm's MAX_HET_JOB_COMPS is 128, the first of which is ``resources``
_KEYS = tuple(item.name for item in dataclasses.fields(Component))


def read_components(rules: MappingType[str, Any]) -> Parser:
    """A parser; ``rules`` are those of ``resources``."""

    def parse(node: Node) -> tuple[Component, ...]:
        if not isinstance(node, Sequence):
            raise ValueError(f"expected a list like [{{nodes: 1, partition: cpu}}], got {describe(node)}")
        if len(node.items) > _MOST:
            raise ValueError(f"{len(node.items)} components are more than Slurm takes ({_MOST} beside resources)")
        return tuple(_component(item, number, rules) for number, item in enumerate(node.items, 1))

    return parse


def _component(node: Node, number: int, rules: MappingType[str, Any]) -> Component:
    if not isinstance(node, Mapping):
        raise ValueError(f"component {number}: expected keys like 'nodes', got {describe(node)}")
    values: dict[str, Any] = {}
    for key, child in node.entries.items():
        if key not in _KEYS:
            near = closest(key, _KEYS)
            hint = f"; did you mean {near!r}?" if near else f"; a component has {', '.join(_KEYS)}"
            raise ValueError(f"component {number}: unknown key {shown(key)}{hint}")
        if describe(child) == "nothing":
            continue
        try:
            values[key] = rules[key](child)
        except ValueError as exc:
            raise ValueError(f"component {number}: {key}: {exc}") from None
    return Component(**values)
