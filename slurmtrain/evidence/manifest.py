"""What a scene holds: one manifest per node, and all of them read together.

``attempts/NNN/launches/M/scene/<node>/manifest.json`` beside one folder for each collector that found something. A node
whose launch got a second scene (asked to stop first, failed later) has it in ``<node>+2``; what somebody outside the
allocation took afterwards lies in ``+after``.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json

MANIFEST = "manifest.json"
SCENE = "scene"
OUTSIDE = "+after"  # instead of a node's name: taken from outside the allocation
TAKEN, FAILED, TIMED_OUT, SKIPPED = "taken", "failed", "timed_out", "skipped"
_MAX_NODES = 100_000


@dataclass(frozen=True, slots=True)
class Taking:
    """What became of one collector on one node."""

    name: str
    status: str  # taken, failed, timed_out, skipped
    why: str = ""  # unless it was taken
    seconds: float = 0.0
    size: int = 0  # bytes
    count: int = 0  # files
    files: tuple[str, ...] = ()  # the first of them, below the collector's folder
    truncated: bool = False  # there was more than its size limit
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeScene:
    """One node's scene. ``complete`` is False while it is taken, and for ever where its taker was killed."""

    folder: Path
    node: str
    ending: str
    cause: str
    at: float  # when it was begun, seconds since the epoch
    seconds: float
    budget_s: float
    complete: bool
    takings: tuple[Taking, ...]

    @property
    def size(self) -> int:
        return sum(taking.size for taking in self.takings)

    def find(self, name: str) -> Taking | None:
        return next((taking for taking in self.takings if taking.name == name), None)


def scene_dir(launch_dir: Path) -> Path:
    return launch_dir / SCENE


def write_manifest(scene: NodeScene) -> None:
    """Raises ``StoreError``."""
    rows = [
        {
            name: getattr(taking, name)
            for name in Taking.__dataclass_fields__
            if getattr(taking, name) not in ("", (), False)
        }
        for taking in scene.takings
    ]
    head = {name: getattr(scene, name) for name in NodeScene.__dataclass_fields__ if name not in ("folder", "takings")}
    replace(scene.folder / MANIFEST, to_json({**head, "collectors": rows}))


def read_scenes(launch_dir: Path) -> list[NodeScene]:
    """All nodes' scenes of one launch, by folder name; what cannot be read is left out. Never raises."""
    found = []
    for folder in _folders(scene_dir(launch_dir)):
        with contextlib.suppress(StoreError, ValueError, TypeError):
            data = read_json(folder / MANIFEST)
            if data is not None:
                found.append(_node_scene(folder, data))
    return found


def has_scene(launch_dir: Path) -> bool:
    """Whether any node has begun one; never raises."""
    return next(_folders(scene_dir(launch_dir)), None) is not None


def _folders(path: Path) -> Iterator[Path]:
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False))
    except OSError:
        return
    yield from (path / name for name in names[:_MAX_NODES] if not name.startswith("."))


def _node_scene(folder: Path, data: Mapping[str, Any]) -> NodeScene:
    rows = data.get("collectors", ())
    return NodeScene(
        folder=folder,
        node=_text(data.get("node")) or folder.name.partition("+")[0],
        ending=_text(data.get("ending")),
        cause=_text(data.get("cause")),
        at=_number(data.get("at")),
        seconds=_number(data.get("seconds")),
        budget_s=_number(data.get("budget_s")),
        complete=data.get("complete") is True,
        takings=tuple(_taking(row) for row in rows if isinstance(row, dict)) if isinstance(rows, list) else (),
    )


def _taking(row: Mapping[str, Any]) -> Taking:
    return Taking(
        name=_text(row.get("name")),
        status=_text(row.get("status")),
        why=_text(row.get("why")),
        seconds=_number(row.get("seconds")),
        size=int(_number(row.get("size"))),
        count=int(_number(row.get("count"))),
        files=_texts(row.get("files")),
        truncated=row.get("truncated") is True,
        notes=_texts(row.get("notes")),
    )


def _text(value: object) -> str:
    return value[:1000] if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(item) for item in value[:1000]) if isinstance(value, list) else ()


def _number(value: object) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else 0.0  # type: ignore[arg-type]
