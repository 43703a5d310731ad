"""Where the scene of a run's newest failure is, whether all nodes are in it, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from slurmtrain.core.run import Run
from slurmtrain.evidence.findings import INFO, SceneFinding, read_findings
from slurmtrain.evidence.manifest import SCENE
from slurmtrain.logs.lines import clean
from slurmtrain.store.folded import NAME as FOLDED
from slurmtrain.store.folded import unfolded
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import RunDir


@dataclass(frozen=True, slots=True)
class SceneSeen:
    """The newest scene that the journal tells of. ``finding`` is "" until somebody looks, and where nothing tells."""

    attempt: int
    launch: int
    path: str
    nodes: int  # that have taken it
    of: int
    finding: str = ""
    seen: bool = False  # somebody has looked into it

    @property
    def complete(self) -> bool:
        return self.nodes >= self.of

    def to_dict(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "launch": self.launch,
            "path": self.path or None,
            "nodes": self.nodes,
            "of": self.of,
            "complete": self.complete,
            "finding": self.finding or None,
        }


def find_scene(run: RunDir, state: Run) -> SceneSeen | None:
    """From the journal alone: no file is looked at."""
    for attempt in reversed(state.attempts):
        for launch in reversed(attempt.launches):
            if (taken := launch.scene) is not None:
                folder = run.attempt(attempt.number).launch(launch.number) / SCENE
                return SceneSeen(attempt.number, launch.number, str(folder), taken.nodes, taken.of)
    return None


def look_into(run: RunDir, seen: SceneSeen) -> SceneSeen:
    """The same with its gravest finding, and where it lies now; never raises."""
    folder = run.attempt(seen.attempt).launch(seen.launch)
    found = find_findings(run, seen.attempt, seen.launch)
    path = seen.path
    if not exists(folder / SCENE):
        path = str(run.path / FOLDED) if exists(run.path / FOLDED) else ""
    first = next((one for one in found if one.weight != INFO), None)
    text = "" if first is None else f"{first.where}: {first.text}" if first.where else first.text
    return replace(seen, path=path, finding=text, seen=True)


def find_findings(run: RunDir, attempt: int, launch: int) -> list[SceneFinding]:
    """What the scene of a launch shows, also where its files were joined, the gravest first. Never raises."""
    folder = run.attempt(attempt).launch(launch)
    inside = folder.relative_to(run.path)
    with unfolded(run.path, f"{inside}/{SCENE}/") as copy:
        found = read_findings(folder if copy is None or (folder / SCENE).is_dir() else copy / inside)
        if copy is not None:
            archive = str(run.path / FOLDED)
            found = [replace(one, path=archive if one.path.startswith(str(copy)) else one.path) for one in found]
    return [replace(one, text=clean(one.text), path=clean(one.path, 1000)) for one in found]


def say_scene(seen: SceneSeen) -> str:
    """``4 of 4 nodes: n3: Xid 79 …``."""
    whole = "" if seen.complete else ", not complete"
    if not seen.path:
        return f"it was kept on {seen.nodes} of {seen.of} nodes and has been deleted"
    return f"{seen.nodes} of {seen.of} nodes{whole}: {seen.finding or 'nothing in it explains the failure'}"
