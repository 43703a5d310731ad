"""Files that name the newest checkpoint: DeepSpeed's ``latest``, Megatron's tracker, TensorFlow's ``checkpoint``.

The training follows them, so a checkpoint that was set aside must not stay named.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from slurmtrain.hosts.files import open_file

_MAX_BYTES = 4096
_ITERATION = re.compile(r"iter_0*(\d+)")


def read_latest(folder: Path) -> str | None:
    """The tag in DeepSpeed's ``latest``; None without one."""
    return _read(folder / "latest")


def repoint(folder: Path, gone: str, to: str | None) -> list[str]:
    """Let pointers to ``gone`` name ``to`` instead, or rename them where there is nothing to name; what was changed."""
    changed = []
    for name, old, new in _pointers(gone, to):
        if _read(folder / name) == old:
            with contextlib.suppress(OSError):
                _replace(folder / name, new)
                changed.append(name)
    if _mentions(folder / "checkpoint", gone):
        with contextlib.suppress(OSError):
            _replace(folder / "checkpoint", f'model_checkpoint_path: "{to}"' if to else None)
            changed.append("checkpoint")
    return changed


def mend(folder: Path, form: str, to: str) -> str | None:
    """Let the pointer of a format name ``to`` where it names nothing that is there; its name if it was changed.

    A training that follows it would begin anew, or fail. A pointer that is missing is not made: its training does
    without, and would not keep it up to date.
    """
    name = {"deepspeed": "latest", "megatron": "latest_checkpointed_iteration.txt"}.get(form)
    named = _read(folder / name) if name else None
    if name is None or named is None or named == "release":
        return None
    iteration = _ITERATION.fullmatch(to)
    if form == "megatron":
        there = named.isascii() and named.isdigit() and (folder / f"iter_{int(named[:18]):07d}").exists()
    else:
        there = named != "" and "\0" not in named and os.path.lexists(folder / named[:255])
    if there or (form == "megatron" and iteration is None):
        return None
    try:
        _replace(folder / name, iteration[1] if form == "megatron" and iteration else to)
    except OSError:
        return None
    return name


def _pointers(gone: str, to: str | None) -> list[tuple[str, str, str | None]]:
    found = [("latest", gone, to)]
    before, after = _ITERATION.fullmatch(gone), _ITERATION.fullmatch(to or "")
    if before:
        found.append(("latest_checkpointed_iteration.txt", before[1], after[1] if after else None))
    return found


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
        path.rename(path.with_name(f"{path.name}.set-aside"))
        return
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)
