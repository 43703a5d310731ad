"""On one node: what each rank is doing in a hang. Their states go to a file, their Python stacks to the log.

SIGABRT makes faulthandler, which every launch switches on, print the stack of all threads; a process without it is
spared, for the signal would tell nothing. The first rank that aborts makes srun end the others, so all nodes do it at
one moment that the agent names.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurmtrain.agent.processes import Process, catches, end_processes, read_environ, read_state
from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json

REQUEST = "stacks"  # in the launch's folder: asks for them, and says when
_LONGEST_WAIT_S = 10.0


def request_stacks(launch_folder: Path, at: float) -> None:
    """Ask the companions for the stacks of a launch at ``at``, seconds since the epoch. Raises ``StoreError``."""
    replace(launch_folder / REQUEST, to_json({"at": at}))


def requested_at(launch_folder: Path) -> float | None:
    """When the agent wants the stacks of this launch; None while it does not."""
    with contextlib.suppress(StoreError):
        at = (read_json(launch_folder / REQUEST) or {}).get("at")
        return float(at) if isinstance(at, (int, float)) else None
    return None


def dump_stacks(processes: Iterable[Process], launch_folder: Path, node: str, at: float) -> None:
    """Write down the state of each rank on this node, and have them print their stacks at ``at``."""
    ranks = find_ranks(processes)
    states = [{"rank": rank, "pid": p.pid, "state": read_state(p.pid)} for rank, p in sorted(ranks.items())]
    with contextlib.suppress(StoreError):
        replace(launch_folder / f"ranks-{node}.json", to_json({"node": node, "ranks": states}))
    time.sleep(min(_LONGEST_WAIT_S, max(0.0, at - time.time())))
    end_processes((p for p in ranks.values() if catches(p, signal.SIGABRT)), signal.SIGABRT)


def find_ranks(processes: Iterable[Process]) -> dict[int, Process]:
    """The process of each rank: the topmost that carries its number and listens, else the topmost that carries it.

    Wrappers like ``bash -c`` carry it too and do not listen; workers of a data loader do both, below their parent.
    """
    found: dict[int, list[Process]] = {}
    for process in processes:
        text = read_environ(process.pid).get("RANK", "")
        if text.isascii() and text.isdigit() and len(text) <= 7:
            found.setdefault(int(text), []).append(process)
    return {rank: _topmost(family) for rank, family in found.items()}


def _topmost(family: list[Process]) -> Process:
    chosen = [p for p in family if catches(p, signal.SIGABRT)] or family
    pids = {p.pid for p in chosen}
    return min((p for p in chosen if p.parent not in pids), key=lambda p: p.start_ticks, default=chosen[0])


def read_states(launch_folder: Path) -> Mapping[int, tuple[str, str]]:
    """Rank → (node, state letter of /proc) as the companions wrote it down."""
    found: dict[int, tuple[str, str]] = {}
    for path in sorted(launch_folder.glob("ranks-*.json")):
        with contextlib.suppress(StoreError):
            report: dict[str, Any] = read_json(path) or {}
            for row in report.get("ranks", ()):
                if isinstance(row, dict) and isinstance(row.get("rank"), int):
                    found[row["rank"]] = (str(report.get("node", ""))[:100], str(row.get("state", ""))[:1])
    return found
