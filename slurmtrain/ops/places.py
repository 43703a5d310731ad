"""Where a person finds what belongs to a run: files and folders that exist, the most useful first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.ops.extract import Evidence, launch_at
from slurmtrain.ops.logs import log_files
from slurmtrain.ops.timeline import RunView
from slurmtrain.store.folded import NAME as FOLDED
from slurmtrain.store.publish import exists

PAGE = "explain.html"


@dataclass(frozen=True, slots=True)
class Place:
    """``what`` in a word or two, and an absolute path."""

    what: str
    path: str


def find_places(view: RunView, where: tuple[int, int] | None, newest_checkpoint: str | None) -> list[Place]:
    """Only what is there."""
    return [Place(what, str(path)) for what, path in _candidates(view, where, newest_checkpoint) if exists(path)]


def _candidates(view: RunView, where: tuple[int, int] | None, checkpoint: str | None) -> Iterator[tuple[str, Path]]:
    run = view.run
    yield "run", run.path
    logs = log_files(view)
    if logs:
        yield "log", logs[-1]
    launch = launch_at(view.state, where)
    if where is not None and launch is not None:
        folder = run.attempt(where[0]).launch(launch.number)
        yield "scene", folder / "scene"
        yield "launch", folder
    yield "folded", run.path / FOLDED
    if checkpoint is not None:
        yield "checkpoint", Path(checkpoint)
    yield "scripts", run.batch_script
    yield "", run.launch_script
    yield "page", run.path / PAGE


def log_place(view: RunView, evidence: list[Evidence]) -> str:
    """``file:line`` of the first line that shows the cause, "" where none does."""
    first = next((item for item in evidence if item.line is not None), None)
    if first is None:
        return ""
    path = first.file if first.file.startswith("/") else str(view.run.path / first.file)
    return f"{path}:{first.line}"
