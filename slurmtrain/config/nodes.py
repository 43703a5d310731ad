"""A configuration tree that remembers where each value was written, whatever the format it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: ``job.yaml:12``, ``--set resources.nodes``, ``environment SBATCH_QOS``."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value as it was written. ``plain``: without quotes, so that ``null`` and ``true`` may be more than words."""

    text: str
    place: Place
    plain: bool = False

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Mapping:
    """``keys`` holds where each key stands; ``entries`` the values. Both in the order of the file."""

    entries: dict[str, Node]
    place: Place
    keys: dict[str, Place] = field(default_factory=dict)


Node: TypeAlias = Scalar | Sequence | Mapping


def describe(node: Node) -> str:
    """What a person wrote, named for an error message."""
    if isinstance(node, Mapping):
        return "a group of keys"
    if isinstance(node, Sequence):
        return "a list" if node.items else "an empty list"
    return "nothing" if node.is_null else shown(node.text)


def shown(text: str, limit: int = 60) -> str:
    """A hostile text, quoted on one line and bounded, for an error message."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def from_plain(value: Any, place: Place) -> Node:
    """Values as TOML or Python know them, as a tree; raises ``TypeError`` for anything that a file cannot hold."""
    if isinstance(value, bool):
        return Scalar("true" if value else "false", place, plain=True)
    if value is None:
        return Scalar("null", place, plain=True)
    if isinstance(value, int | float):
        return Scalar(str(value), place, plain=True)
    if isinstance(value, str):
        return Scalar(value, place)
    if isinstance(value, list | tuple):
        return Sequence(tuple(from_plain(item, place) for item in value), place)
    if isinstance(value, dict):
        entries = {str(key): from_plain(item, place) for key, item in value.items()}
        return Mapping(entries, place, dict.fromkeys(entries, place))
    raise TypeError(f"{type(value).__name__} has no place in a settings file")


def put(tree: Mapping, dotted: str, node: Node) -> None:
    """Add ``node`` to the tree under a key path like ``resources.nodes``, over what stands there."""
    *groups, last = dotted.split(".")
    for name in groups:
        inner = tree.entries.get(name)
        if not isinstance(inner, Mapping):
            inner = Mapping({}, node.place)
            tree.entries[name] = inner
            tree.keys[name] = node.place
        tree = inner
    tree.entries[last] = node
    tree.keys[last] = node.place
