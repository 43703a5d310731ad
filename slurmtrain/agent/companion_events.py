"""What companions tell the agent: lines of their output, which srun writes into one file on the agent's own node.

No node reads or writes anything on shared storage for it. The same file holds what srun says of companions that died.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.slurm.srun_messages import parse_rank_exits

LOST = "lost"  # tasks ran on without their slurmstepd; they were killed
GONE = "gone"  # all tasks of the launch on this node are gone
SCENE = "scene"  # this node's scene of the launch is taken, as far as it could be
TOLD_TO_END = "term"  # Slurm, or a person through it, told the companion to end: it leaves when the ranks are gone
_EVENT = re.compile(r"^slurmtrain-companion: (lost|gone|scene|term) ([0-9]{1,6}\.[0-9]{1,6}) ([\w.\-]{1,255})$")
_MAX_READ = 1 << 16  # bytes at one look; what companions print is bounded, what others print here is not


@dataclass(frozen=True, slots=True)
class News:
    """What was new at one look: (event, launch, node) triples, and nodes whose companion died."""

    events: tuple[tuple[str, str, str], ...] = ()
    dead: tuple[str, ...] = ()


def tell(event: str, launch: str, node: str) -> None:
    """On a companion's own output."""
    sys.stdout.write(f"slurmtrain-companion: {event} {launch} {node}\n")
    sys.stdout.flush()


class CompanionLog:
    """Reads what was added to the companions' output since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = _size(path)

    def read(self) -> News:
        """Never raises; a line that is not whole yet is read at the next look."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read(_MAX_READ)
        except OSError:
            return News()
        whole = data[: data.rfind(b"\n") + 1] if len(data) < _MAX_READ else data
        self._offset += len(whole)
        lines = whole.decode("utf-8", "replace").splitlines()
        found = [match for line in lines if (match := _EVENT.match(line))]
        dead = [end.node for end in parse_rank_exits(lines) if end.node]
        return News(tuple((m[1], m[2], m[3]) for m in found), tuple(dict.fromkeys(dead)))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
