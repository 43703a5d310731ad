"""YAML, strictly and without its surprises.

The tree is built from the parser's events, never from PyYAML's constructors, so no tag is ever acted upon and no value
is guessed: ``1:30:00`` (a base-60 number in YAML 1.1), ``no``, ``1e-4`` and ``010`` stay the words that were written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from slurmtrain.config.nodes import Mapping, Node, Place, Scalar, Sequence, describe, shown
from slurmtrain.config.textfile import read_text
from slurmtrain.errors import SpecError

MAX_NODES = 20_000  # after aliases are followed: a "billion laughs" file ends here
MAX_DEPTH = 32


def load_yaml(path: Path) -> Node:
    """The one document of a YAML file; raises ``SpecError`` or ``NotFoundError``."""
    text = read_text(path)
    if text.startswith("#!"):
        raise SpecError(
            f"{path} looks like a script, but a job file in YAML is expected; "
            f"to run a command: slurmtrain submit -N 2 -- bash {path}"
        )
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str, *, fixed_place: Place | None = None) -> Node:
    """The one document of ``text``. ``fixed_place`` names the place of every value where lines mean nothing."""
    builder = _Builder(source, fixed_place, yaml.parse(text, Loader=yaml.SafeLoader))
    try:
        return builder.document()
    except yaml.MarkedYAMLError as exc:
        raise SpecError(_explain(exc, text, source)) from None
    except yaml.reader.ReaderError as exc:
        line = text.count("\n", 0, exc.position) + 1
        raise SpecError(f"{source}:{line}: the character U+{_code(exc):04X} is not allowed in YAML") from None


def _code(exc: yaml.reader.ReaderError) -> int:
    return exc.character if isinstance(exc.character, int) else ord(exc.character[:1] or "\0")


@dataclass(slots=True)
class _Builder:
    """Builds the tree from the parser's events; bounded in size and depth, aliases followed."""

    source: str
    fixed_place: Place | None
    events: Iterator[Any]
    anchors: dict[str, Node | None] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)  # id of an anchored node → nodes in it
    count: int = 0

    def document(self) -> Node:
        next(self.events)  # the stream's start
        first = next(self.events)
        if isinstance(first, yaml.StreamEndEvent):
            return Mapping({}, self._place(first))
        node = self._node(next(self.events), 0)
        next(self.events)  # the document's end
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise SpecError(f"{self._place(after)}: a second document begins here; a job file has one")
        return node

    def _place(self, event: Any) -> Place:
        return self.fixed_place or Place(self.source, event.start_mark.line + 1)

    def _node(self, event: Any, depth: int) -> Node:
        place = self._place(event)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), place)
        before = self.count
        self._count(1, place)
        if depth > MAX_DEPTH:
            raise SpecError(f"{place}: nested more than {MAX_DEPTH} levels deep")
        if event.tag is not None:
            raise SpecError(f"{place}: the tag {shown(str(event.tag))} is not allowed; write the plain value")
        if event.anchor is not None:
            self.anchors[event.anchor] = None  # not complete yet: an alias inside itself is an error
        node = self._content(event, place, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
            self.sizes[id(node)] = self.count - before
        return node

    def _content(self, event: Any, place: Place, depth: int) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return Scalar(_join_surrogates(event.value), place, plain=event.style is None)
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Node] = []
            while not isinstance(inner := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(inner, depth + 1))
            return Sequence(tuple(items), place)
        return self._mapping(place, depth)

    def _mapping(self, place: Place, depth: int) -> Mapping:
        entries: dict[str, Node] = {}
        keys: dict[str, Place] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if not isinstance(key, Scalar):
                raise SpecError(f"{key.place}: a key must be a word, not {describe(key)}")
            if key.text in entries:
                raise SpecError(f"{key.place}: the key {shown(key.text)} is written twice (first at {keys[key.text]})")
            if key.text == "<<" and key.plain:
                raise SpecError(f"{key.place}: merge keys (<<) are not supported; write the keys out")
            keys[key.text] = key.place
            entries[key.text] = self._node(next(self.events), depth + 1)
        return Mapping(entries, place, keys)

    def _count(self, more: int, place: Place) -> None:
        self.count += more
        if self.count > MAX_NODES:
            raise SpecError(f"{place}: more than {MAX_NODES} values, aliases followed; this is no job file")

    def _alias(self, name: str, place: Place) -> Node:
        if name not in self.anchors:
            raise SpecError(f"{place}: the alias {shown('*' + name)} names no anchor above it")
        node = self.anchors[name]
        if node is None:
            raise SpecError(f"{place}: the alias {shown('*' + name)} contains itself")
        self._count(self.sizes[id(node)], place)
        return node


def _join_surrogates(text: str) -> str:
    """JSON writes a character beyond U+FFFF as two escapes; YAML's parser leaves them apart."""
    if not any("\ud800" <= char <= "\udbff" for char in text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _explain(exc: yaml.MarkedYAMLError, text: str, source: str) -> str:
    mark = exc.problem_mark or exc.context_mark
    line = mark.line + 1 if mark else 1
    where = f"{source}:{line}"
    lines = text.splitlines()
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    problem = exc.problem or "it cannot be read"
    if written[: len(written) - len(written.lstrip())].find("\t") >= 0 or "'\\t'" in problem:
        return f"{where}: a tab is used for indentation; YAML allows only spaces there"
    if "mapping values are not allowed" in problem:
        return f"{where}: not valid YAML: a ': ' inside a value; put the value in quotes, or check the indentation"
    if "found character" in problem and ("'@'" in problem or "'`'" in problem or "'%'" in problem):
        char = problem.split("character")[1].split()[0]
        return f"{where}: not valid YAML: a value may not begin with {char}; put it in quotes"
    context = f"{exc.context}, " if exc.context else ""
    return f"{where}: not valid YAML: {context}{problem}"
