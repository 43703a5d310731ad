"""``spec.yaml``: the resolved spec, each value with a comment that says where it came from. It is a job file itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurmtrain.config.nodes import shown
from slurmtrain.config.schema import SCHEMA, VARIABLES, Group
from slurmtrain.core.spec import Spec, spec_to_dict


def dump_spec(spec: Spec, sources: Mapping[str, str], run_id: str) -> str:
    """The text of ``spec.yaml``. Reading it back gives the same spec."""
    lines = [
        f"# slurmtrain run {run_id}: what was asked for, and where each value came from.",
        "# `slurmtrain submit` takes this file as it is; changing it changes nothing about this run.",
    ]
    _dump_group(spec_to_dict(spec), SCHEMA, "", sources, lines)
    return "\n".join(lines) + "\n"


def _dump_group(
    values: Mapping[str, Any], group: Group, prefix: str, sources: Mapping[str, str], lines: list[str]
) -> None:
    indent = "  " * prefix.count(".")
    for key, rule in group.items():
        path = f"{prefix}{key}"
        if path == VARIABLES:
            _dump_variables(values[key], indent, sources, lines)
        elif isinstance(rule, dict):
            lines.append(f"{indent}{key}:")
            _dump_group(values[key], rule, f"{path}.", sources, lines)
        else:
            source = "not set" if values[key] is None else sources.get(path, "default")
            lines.append(f"{indent}{key}: {_value(values[key])}{_comment(source)}")


def _dump_variables(variables: Mapping[str, str], indent: str, sources: Mapping[str, str], lines: list[str]) -> None:
    lines.append(f"{indent}variables:" + ("" if variables else " {}"))
    for name, value in variables.items():
        comment = _comment(sources.get(f"{VARIABLES}.{name}", "default"))
        lines.append(f"{indent}  {name}: {_value(value)}{comment}")


def _comment(source: str) -> str:
    return f"  # {source if source.isprintable() else shown(source, 200)}"


def _value(value: Any) -> str:
    """A value on one line; texts in double quotes, whose escapes YAML shares with JSON."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value(item)}" for key, item in value.items() if item is not None) + "}"
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)
        return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
    return json.dumps(value)
