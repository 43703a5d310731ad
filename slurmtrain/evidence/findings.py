"""What a scene shows, in short sentences: its collectors' notes, the gravest first, alike ones of several nodes once.

Collectors note what they recognise (an Xid, a kill for memory, a full disk, a port that is down, the rank that missed
a collective); here those notes are weighed and put together. What a scene holds is data: nothing of it is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmtrain.evidence.manifest import FAILED, OUTSIDE, TIMED_OUT, NodeScene, Taking, read_scenes
from slurmtrain.hosts.files import open_file

BAD, WARN, INFO = "bad", "warn", "info"
_MOST = 200
_MOST_NODES = 64  # that a finding names
_BAD = re.compile(
    r"\bS?Xid \d+|killed for memory|killed processes|is full\b|does not answer|machine check|uncorrect|ERR!|"
    r"fallen off|\blost\b|is gone|missing|\bmissed\b|never (?:joined|entered|called)|"
    r"did not (?:take part|join|reach|enter)|left no record|, the others \w|died of|"
    r"(?:nvidia|rocm)-smi\b.*did not answer|not responding|link down|\bDOWN\b|Disabled|GPU fault|I/O error|"
    r"stopped by a signal|core dump|back ?trace|\bSIG(?:SEGV|ABRT|BUS|ILL|FPE)\b|checkpoints passes its check",
    re.IGNORECASE,
)
_INFO = re.compile(
    r"^no |cannot be read|cannot read|cannot run|there is no|tells no|is no git|is not (?:installed|there|readable)|"
    r"not permitted|permission denied|has no |are kept\b|may not",
    re.IGNORECASE,
)
_FRAME = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?([^\s(]{1,120})")  # gdb: "#1  0x00007f2a in step (n=3) at a.c:7"
_TRACE = "back-trace-"
_CRASHED = "\nThread 1 ("  # gdb counts from the thread that crashed, and prints it last
_SHOWN_FRAMES, _READ = 5, 4 << 20
_NUMBER = re.compile(r"^[0-9]{1,3}-")  # ``12-kernel.py``: the number orders collectors
_QUIET = frozenset({"code", "environment", "limits", "slurm", "processes"})  # collectors of facts, not of faults
_ORDER = (BAD, WARN, INFO)


@dataclass(frozen=True, slots=True)
class SceneFinding:
    """One sentence. ``nodes`` where it holds (none: taken from outside), ``count`` how many that are; ``path`` to open.

    ``weight``: ``bad`` explains failures, ``warn`` may matter, ``info`` says what could not be looked at.
    """

    text: str
    weight: str
    collector: str
    nodes: tuple[str, ...] = ()
    count: int = 0
    path: str = ""

    @property
    def where(self) -> str:
        """The nodes in a few words; "" for what was taken from outside."""
        more = self.count - 3
        return ", ".join(self.nodes[:3]) + (f" and {more} more" if more > 0 else "")

    def to_dict(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "weight": self.weight,
            "collector": self.collector,
            "nodes": list(self.nodes),
            "count": self.count,
            "path": self.path or None,
        }


def read_findings(launch_dir: Path) -> list[SceneFinding]:
    """Of all nodes' scenes of one launch, the gravest first; never raises."""
    return find_in(read_scenes(launch_dir))


def find_in(scenes: Sequence[NodeScene]) -> list[SceneFinding]:
    """The same from scenes that were read."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for scene in scenes:
        node = "" if scene.folder.name == OUTSIDE else scene.node
        for collector, text, path in _told(scene):
            groups.setdefault((collector, text), []).append((node, path))
    found = [_finding(collector, text, places) for (collector, text), places in groups.items()]
    found.sort(key=lambda one: (_ORDER.index(one.weight), one.count, one.collector))
    return found[:_MOST]


def _told(scene: NodeScene) -> Iterator[tuple[str, str, str]]:
    """(collector, sentence, path) of one node."""
    for taking in scene.takings:
        path, name = _path_of(scene, taking), _NUMBER.sub("", taking.name).partition(".")[0]
        yield from ((name, " ".join(note.split()), path) for note in taking.notes if note.strip())
        yield from ((name, frames, path) for frames in _top_frames(scene, taking))
        if taking.status in (FAILED, TIMED_OUT):
            how = "took too long" if taking.status == TIMED_OUT else "failed"
            why = f": {' '.join(taking.why.split())}" if taking.why and taking.status == FAILED else ""
            yield name, f"no {name}: its collector {how}{why}", ""
    if not scene.complete:
        yield "scene", "the scene is not complete: its taking was cut off", str(scene.folder)


def _top_frames(scene: NodeScene, taking: Taking) -> Iterator[str]:
    """The innermost functions of each back trace that gdb made of a core file; what cannot be read is passed over."""
    for file in taking.files:
        if not file.startswith(_TRACE) or "/" in file:
            continue
        try:
            with open_file(scene.folder / taking.name / file) as stream:
                text = stream.read(_READ).decode("utf-8", "replace")
        except OSError:
            continue
        frames: list[str] = []
        for match in _FRAME.finditer(text, max(0, text.rfind(_CRASHED))):
            if match[0].startswith("#0") and frames:
                break  # the next thread
            frames.append(match[1])
        if frames:
            whose = file.removeprefix(_TRACE).partition(".")[0][:20]
            yield f"back trace of {whose}: {' ← '.join(frames[:_SHOWN_FRAMES])}"


def _path_of(scene: NodeScene, taking: Taking) -> str:
    """The collector's first file, or its folder."""
    if not taking.files:
        return ""
    first = taking.files[0]
    safe = not first.startswith("/") and ".." not in first.split("/")
    return (
        str(scene.folder / taking.name / first) if safe and len(taking.files) == 1 else str(scene.folder / taking.name)
    )


def _finding(collector: str, text: str, places: Sequence[tuple[str, str]]) -> SceneFinding:
    nodes = tuple(dict.fromkeys(node for node, _ in places if node))
    path = next((path for _, path in places if path), "")
    return SceneFinding(text, weigh(text, collector), collector, nodes[:_MOST_NODES], len(nodes), path)


def weigh(text: str, collector: str = "") -> str:
    """How much a sentence explains: ``bad``, ``warn`` or ``info``."""
    if _BAD.search(text):
        return BAD
    return INFO if collector in _QUIET or _INFO.search(text) else WARN
