"""List pyslurm's API from its sources: classes with their attributes, and modules with their functions.

    pip download --no-binary pyslurm --no-deps pyslurm==25.11.2 && tar xzf pyslurm-25.11.2.tar.gz
    python tests/pyslurm_api.py pyslurm-25.11.2 > tests/data/pyslurm/api-25.11.json

Names and parameter names only, no code of pyslurm's.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_CLASS = re.compile(r"^(?:cdef )?class (\w+)")
_METHOD = re.compile(r"^    (?:def|cpdef \w+) (\w+)\((.*?)\)\s*:", re.DOTALL | re.MULTILINE)
_PUBLIC = re.compile(r"^    cdef public:\n((?:        \w.*\n|\n)+)", re.MULTILINE)


MODULES = (
    "core.error",
    "core.job.job",
    "core.job.step",
    "core.job.submission",
    "core.node",
    "core.slurmctld.config",
    "db.job",
)


def list_exports(source: Path) -> list[str]:
    """Names that ``import pyslurm`` offers."""
    text = (source / "pyslurm" / "__init__.py").read_text(encoding="utf-8")
    blocks = re.findall(r"^from [\w.]+ import (?:\(([^)]*)\)|(.*))", text, re.MULTILINE)
    return sorted(
        {name.strip() for block in blocks for name in "".join(block).split(",") if name.strip().isidentifier()}
    )


def list_api(source: Path) -> dict[str, dict[str, list[str]]]:
    """``"core.job.job.Job"`` → attribute → parameter names (empty for a property or a field)."""
    api: dict[str, dict[str, list[str]]] = {}
    for path in sorted((source / "pyslurm").rglob("*.p[xy][xd]")):
        module = ".".join(path.relative_to(source / "pyslurm").with_suffix("").parts)
        if module not in MODULES:
            continue
        for name, body in _classes(path.read_text(encoding="utf-8")):
            members = api.setdefault(f"{module}.{name}", {})
            for method, parameters in _METHOD.findall(body):
                members[method] = _names(parameters)
            for block in _PUBLIC.findall(body):
                members.update({line.split()[-1]: [] for line in block.splitlines() if line.strip()})
    return {name: members for name, members in api.items() if members}


def _classes(text: str) -> list[tuple[str, str]]:
    lines = text.splitlines(keepends=True)
    starts = [(number, match[1]) for number, line in enumerate(lines) if (match := _CLASS.match(line))]
    ends = [number for number, _ in starts[1:]] + [len(lines)][: len(starts)]
    return [(name, "".join(lines[start:end])) for (start, name), end in zip(starts, ends, strict=True)]


def _names(parameters: str) -> list[str]:
    words = (word.split("=")[0].strip().split(" ")[-1] for word in parameters.split(","))
    return [word for word in words if word and word != "self"]


def main() -> None:
    source = Path(sys.argv[1])
    version = re.search(r'__version__ = "([^"]+)"', (source / "pyslurm" / "version.py").read_text(encoding="utf-8"))
    listing: dict[str, Any] = {"pyslurm": version[1] if version else source.name, "exports": list_exports(source)}
    listing["api"] = list_api(source)
    print(json.dumps(listing, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
