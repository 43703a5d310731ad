"""Files that name the newest checkpoint: DeepSpeed's ``latest``, Megatron's tracker, TensorFlow's ``checkpoint``.

The training follows them, so a checkpoint that was set aside must not stay named.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from slurmtrain.hosts.files import open_file

ASIDE = ".set-aside"  # what ends the name of a folder, or of a pointer, that is out of use
LATEST = "latest"  # DeepSpeed's: a tag
TRACKER = "latest_checkpointed_iteration.txt"  # Megatron's: a number, or "release"
TENSORFLOW = "checkpoint"  # TensorFlow's: a table as text
_OF_FORMATS = {"deepspeed": LATEST, "megatron": TRACKER}
_MAX_BYTES = 4096
_ITERATION = re.compile(r"iter_0*(\d+)")


def read_latest(folder: Path) -> str | None:
    """The tag in DeepSpeed's ``latest``; None without one."""
    return _read(folder / LATEST)


def repoint(folder: Path, gone: str, to: str | None) -> list[str]:
    """Let pointers to ``gone`` name ``to`` instead, or rename them where there is nothing to name; what was changed."""
    changed = []
    for name in _OF_FORMATS.values():
        old = _as_named(name, gone)
        if old is not None and _read(folder / name) == old:
            with contextlib.suppress(OSError):
                _replace(folder / name, _as_named(name, to) if to is not None else None)
                changed.append(name)
    if _mentions(folder / TENSORFLOW, gone):
        with contextlib.suppress(OSError):
            _replace(folder / TENSORFLOW, f'model_checkpoint_path: "{to}"' if to else None)
            changed.append(TENSORFLOW)
    return changed


def mend(folder: Path, form: str, to: str) -> str | None:
    """Let the pointer of a format name ``to`` where it names nothing that is there; its name if it was changed.

    A training that follows it would begin anew, or fail. A pointer that is missing is not made: its training does
    without, and would not keep it up to date.
    """
    name = _OF_FORMATS.get(form)
    named = _read(folder / name) if name else None
    if name is None or named is None or named == "release":
        return None
    there = _names_iteration(folder, named) if name == TRACKER else _names_tag(folder, named)
    new = _as_named(name, to)
    if there or new is None:
        return None
    try:
        _replace(folder / name, new)
    except OSError:
        return None
    return name


def _as_named(pointer: str, checkpoint: str) -> str | None:
    """How a pointer names a checkpoint; None for one that it cannot name."""
    if pointer != TRACKER:
        return checkpoint
    iteration = _ITERATION.fullmatch(checkpoint)
    return iteration[1] if iteration else None


def _names_tag(folder: Path, tag: str) -> bool:
    return tag != "" and "\0" not in tag and os.path.lexists(folder / tag[:255])


def _names_iteration(folder: Path, text: str) -> bool:
    return text.isascii() and text.isdigit() and (folder / f"iter_{int(text[:18]):07d}").exists()


def _mentions(path: Path, name: str) -> bool:
    text = _read(path) or ""
    return re.search(rf'^model_checkpoint_path: "(?:[^"\n]*/)?{re.escape(name)}"', text, re.MULTILINE) is not None


def _read(path: Path) -> str | None:
    try:
        with open_file(path) as stream:
            return stream.read(_MAX_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return None


def _replace(path: Path, text: str | None) -> None:
    if text is None:
        path.rename(path.with_name(f"{path.name}{ASIDE}"))
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)
