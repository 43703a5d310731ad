"""Readers for the ceilings of the ladder: hours, a deadline, and other ceilings for single causes."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from slurmtrain.config import parsers as p
from slurmtrain.config.nodes import Mapping, Node, describe, shown
from slurmtrain.config.problems import closest
from slurmtrain.core.causes import CAUSES

_HOURS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?([+-]\d{2}:\d{2}|Z)?)?")
_CAUSE = {
    "first": p.choice("in_place", "requeue", "hold", "stop"),
    "in_place": p.integer(0, 10_000),
    "requeues": p.integer(0, 10_000),
    "delay_s": p.seconds(0, 7 * 86400),
    "hold": p.boolean,
}


def hours(node: Node) -> float:
    """A number of hours, fractions allowed."""
    value = p.word(node, "a number of hours").strip()
    if not _HOURS.fullmatch(value):
        raise ValueError(f"expected a number of hours like 64 or 1.5, got {shown(value)}")
    return float(value)


def deadline(node: Node) -> str:
    """``90m``, ``72h``, ``10d``, ``2w`` since submission; or a date, which is kept with the zone of this machine."""
    value = p.word(node, "a duration like 72h, or a date").strip()
    if re.fullmatch(r"[1-9][0-9]{0,6}[mhdw]", value):
        return value
    if not _DATE.fullmatch(value):
        raise ValueError(f"expected a duration like 72h or 10d, or a date like 2026-12-24T08:00, got {shown(value)}")
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError) as exc:
        raise ValueError(f"{shown(value)} is no date: {exc}") from exc


def causes(node: Node) -> dict[str, dict[str, Any]]:
    """For each cause by its name, what differs for it."""
    if not isinstance(node, Mapping):
        raise ValueError(f"expected causes by name, like {{nccl_timeout: {{requeues: 5}}}}, got {describe(node)}")
    return {name: _cause(name, child) for name, child in node.entries.items()}


def _cause(name: str, node: Node) -> dict[str, Any]:
    if name not in CAUSES:
        near = closest(name, CAUSES)
        hint = f"; did you mean {near!r}?" if near else "; docs/causes.md lists them"
        raise ValueError(f"{shown(name)} is no cause{hint}")
    if not isinstance(node, Mapping):
        raise ValueError(f"{name}: expected keys ({', '.join(_CAUSE)}), got {describe(node)}")
    found = {}
    for key, child in node.entries.items():
        rule = _CAUSE.get(key)
        if rule is None:
            near = closest(key, _CAUSE)
            hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(_CAUSE)}"
            raise ValueError(f"{name}: unknown key {shown(key)}; {hint}")
        try:
            found[key] = rule(child)
        except ValueError as exc:
            raise ValueError(f"{name}.{key}: {exc}") from exc
    return found
