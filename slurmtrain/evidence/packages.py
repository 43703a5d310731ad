"""The packages that a training's Python sees."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurmtrain.evidence.bounded import Output

_LIST = """
import sys
from importlib import metadata
rows = set()
for found in metadata.distributions():
    try:
        rows.add((found.metadata["Name"] or "?", found.version or "?"))
    except Exception:
        pass
print("python==" + sys.version.split()[0])
print("\\n".join("%s==%s" % row for row in sorted(rows, key=lambda row: (row[0].lower(), row[1]))))
"""
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
_TIMEOUT_S = 8.0


def find_python(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> Path | None:
    """The first word of the command that is a Python, else that of a script's first line, else the PATH's."""
    path = environ.get("PATH", "")
    for word in command[:8]:
        if _PYTHON.fullmatch(Path(word).name) and (found := _find(word, path, folder)):
            return found
    if command and (program := _find(command[0], path, folder)) and (found := _interpreter(program)):
        return found
    return _find("python", path, folder) or _find("python3", path, folder)


def _find(word: str, path: str, folder: Path) -> Path | None:
    found = shutil.which(str(folder / word) if "/" in word else word, path=path)
    return Path(found) if found and Path(found).is_absolute() else None


def _interpreter(program: Path) -> Path | None:
    """Of a script like torchrun or accelerate, which begins with ``#!/…/bin/python``."""
    try:
        with program.open("rb") as stream:
            first = stream.read(512).split(b"\n", 1)[0]
    except OSError:
        return None
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    candidate = Path(words[0]) if words else Path()
    return candidate if _PYTHON.fullmatch(candidate.name) and candidate.is_file() else None


def list_packages(python: Path, run: Callable[..., Output]) -> list[str]:
    """``NAME==VERSION``, of the interpreter itself first. Empty where it does not tell."""
    done = run(str(python), "-I", "-c", _LIST, timeout_s=_TIMEOUT_S, max_bytes=1 << 20)
    return done.stdout.split() if done.ok else []
