"""A collector: one file that takes one part of the scene, with its own time limit and size limit.

Its constants are read as literals and never by running it. A Python collector (``*.py``) has them as assignments and a
function ``collect(scene)``; any other executable begins with ``#!`` and has them in comments, ``# TIME_LIMIT_S = 5``:

``TIME_LIMIT_S``  seconds, until its processes are killed
``SIZE_LIMIT``    bytes that it may leave behind
``WHERE``         "node" (each node), "batch_host" (once, on the node of the batch script), "watcher" (once, from
                  outside the allocation, when the job is over), or several of them in a tuple
``DRIVER``        True where it asks the GPU driver: those run last, one by one, and not where the driver is gone
``ENDINGS``       the endings after which it is wanted; all of them where it is absent
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurmtrain.errors import SpecError

NODE, BATCH_HOST, WATCHER = "node", "batch_host", "watcher"
PLACES = (NODE, BATCH_HOST, WATCHER)
# What made a scene be taken. "ended": Slurm ended the job (cancelled, time limit, preempted, a node lost); "after":
# the job was gone already, and somebody outside looks at what is left.
FAILED, HUNG, WARNED, ENDED, AFTER = "failed", "hung", "warned", "ended", "after"
ENDINGS = (FAILED, HUNG, WARNED, ENDED, AFTER)

MAX_SOURCE = 256 << 10
MAX_TIME_S, MAX_SIZE = 600, 1 << 36  # so much only where an image is saved
_HEADER_LINES = 60
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_CONSTANT = re.compile(r"^(?:#|//|--)\s*(TIME_LIMIT_S|SIZE_LIMIT|WHERE|DRIVER|ENDINGS)\s*=\s*(.+?)\s*$")


@dataclass(frozen=True, slots=True)
class Collector:
    """One collector with its source, as it is frozen with a run."""

    name: str
    source: str
    python: bool
    time_limit_s: float = 5.0
    size_limit: int = 1 << 20
    where: tuple[str, ...] = (NODE,)
    driver: bool = False
    endings: tuple[str, ...] = ENDINGS
    origin: str = "bundled"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def collector_from_dict(data: Mapping[str, Any]) -> Collector:
    """Inverse of ``to_dict``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is none."""
    known = {name: data[name] for name in Collector.__dataclass_fields__ if name in data}
    known |= {name: tuple(known[name]) for name in ("where", "endings") if name in known}
    return Collector(**known)


def read_collector(path: Path, origin: str) -> Collector:
    """Read one file. Raises ``SpecError``, which names the file and what is wrong with it."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_SOURCE + 1)
    except OSError as exc:
        raise SpecError(f"cannot read the collector {path}: {exc.strerror or exc}") from exc
    if len(data) > MAX_SOURCE:
        raise SpecError(f"the collector {path} is larger than {MAX_SOURCE >> 10} KiB")
    if not _NAME.fullmatch(path.name):
        raise SpecError(f"the collector {str(path)!r}: its name may hold letters, digits, '.', '_' and '-' only")
    try:
        return parse_collector(path.name, data.decode("utf-8"), origin)
    except UnicodeDecodeError as exc:
        raise SpecError(f"the collector {path} is no text: name a script that starts the program") from exc
    except ValueError as exc:
        raise SpecError(f"the collector {path}: {exc}") from exc


def parse_collector(file_name: str, source: str, origin: str) -> Collector:
    """Raises ``ValueError`` for what cannot be used."""
    name, dot, kind = file_name.rpartition(".")
    python = dot == "." and kind == "py"
    constants = _python_constants(source) if python else _header_constants(source)
    values: dict[str, Any] = {}
    if "TIME_LIMIT_S" in constants:
        values["time_limit_s"] = _number(constants["TIME_LIMIT_S"], "TIME_LIMIT_S", MAX_TIME_S)
    if "SIZE_LIMIT" in constants:
        values["size_limit"] = int(_number(constants["SIZE_LIMIT"], "SIZE_LIMIT", MAX_SIZE))
    if "WHERE" in constants:
        values["where"] = _words(constants["WHERE"], "WHERE", PLACES)
    if "ENDINGS" in constants:
        values["endings"] = _words(constants["ENDINGS"], "ENDINGS", ENDINGS)
    if "DRIVER" in constants:
        if not isinstance(constants["DRIVER"], bool):
            raise ValueError("DRIVER must be True or False")
        values["driver"] = constants["DRIVER"]
    return Collector(name if dot and name else file_name, source, python, origin=origin, **values)


def _python_constants(source: str) -> dict[str, Any]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        raise ValueError(f"Python cannot read it: {exc}") from exc
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "collect" not in names:
        raise ValueError("it needs a function collect(scene)")
    found: dict[str, Any] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign) and _CONSTANT.match(f"# {target.id} = 0"):
            found[target.id] = _literal(target.id, node.value)
    return found


def _header_constants(source: str) -> dict[str, Any]:
    if not source.startswith("#!"):
        raise ValueError("it is no Python file (*.py) and does not begin with #!")
    lines = source.splitlines()[:_HEADER_LINES]
    return {match[1]: _literal(match[1], match[2]) for match in map(_CONSTANT.match, lines) if match}


def _literal(name: str, value: ast.expr | str) -> Any:
    """A literal, or a product or shift of whole numbers like ``8 << 20``."""
    try:
        node = ast.parse(value, mode="eval").body if isinstance(value, str) else value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.Mult):
            left, right = ast.literal_eval(node.left), ast.literal_eval(node.right)
            if type(left) is int and type(right) is int and 0 <= left <= MAX_SIZE and 0 <= right <= MAX_SIZE:
                if isinstance(node.op, ast.Mult):
                    return left * right
                if right <= 40:
                    return left << right
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as exc:
        raise ValueError(f"{name} must be a plain value; it is read without running the file") from exc


def _number(value: Any, name: str, most: int) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        raise ValueError(f"{name} must be a number from 1 to {most}")
    return value


def _words(value: Any, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (tuple, list)) or not words or not all(word in allowed for word in words):
        raise ValueError(f"{name} must be one or several of {', '.join(allowed)}")
    return tuple(words)
