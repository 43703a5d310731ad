"""Formats of a site's or a user's own: Python files that the run keeps, used only in the child that checks.

Each has ``matches(path)`` and ``check(path, deep)``, which returns the step or None and raises ``Incomplete`` or
``Corrupt``; both names are there. What else it raises says nothing about the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.model import Corrupt, Entry, Format, Incomplete, Reading

OWN_FORMATS = "formats.json"  # in the run directory: name → source
_MAX_BYTES = 16 << 20


class UnsureError(OSError):
    """A format's own code failed: nothing is known about the checkpoint."""


def load_own(path: Path | None) -> tuple[Format, ...]:
    """The formats of a run; they come before the built-in ones. Raises ``UnsureError`` for code that does not load."""
    if path is None or not path.is_file():
        return ()
    with path.open("rb") as stream:
        sources: dict[str, str] = json.loads(stream.read(_MAX_BYTES))
    return tuple(build_format(name, source) for name, source in sources.items())


def build_format(name: str, source: str) -> Format:
    """Run the source. Raises ``UnsureError`` where that fails or a function is missing."""
    space: dict[str, Any] = {"__name__": f"format_{name}", "Incomplete": Incomplete, "Corrupt": Corrupt, "Path": Path}
    try:
        exec(compile(source, f"<format {name}>", "exec"), space)  # noqa: S102 - as trusted as the job file
        matches, check = space["matches"], space["check"]
    except (Exception, SystemExit) as exc:
        raise UnsureError(0, f"the format {name} does not load: {type(exc).__name__}: {exc}") from exc
    return Format(name, _guarded(name, lambda entry: bool(matches(entry.path))), _checker(name, check))


def _checker(name: str, check: Callable[..., Any]) -> Callable[[Entry, Reading], None]:
    def run(entry: Entry, reading: Reading) -> None:
        step = _guarded(name, lambda one: check(one.path, reading.deep))(entry)
        reading.step = step if isinstance(step, int) and not isinstance(step, bool) else None

    return run


def _guarded(name: str, call: Callable[[Entry], Any]) -> Callable[[Entry], Any]:
    def run(entry: Entry) -> Any:
        try:
            return call(entry)
        except (Incomplete, Corrupt, OSError):
            raise
        except (Exception, SystemExit) as exc:
            raise UnsureError(0, f"the format {name} failed on it: {type(exc).__name__}: {exc}") from exc

    return run
