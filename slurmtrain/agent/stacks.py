"""On one node: what each rank is doing in a hang. Their states and steps go to a file, their Python stacks, too.

Where the training's environment has py-spy and ptrace is allowed, it reads the stacks; they go to a file of the node.
The ranks whose stacks it does not get are sent SIGABRT: faulthandler, which every launch switches on, then prints the
stack of all threads to the log; a process without it is spared, for the signal would tell nothing. The first rank that
aborts makes srun end the others, so all nodes do it at one moment that the agent names.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from slurmtrain.agent.processes import Process, catches, end_processes, read_environ, read_state
from slurmtrain.agent.pyspy import dump_with_pyspy
from slurmtrain.core.paces import Pace
from slurmtrain.errors import StoreError
from slurmtrain.evidence.rank_states import STATES
from slurmtrain.store.publish import read_json, replace, to_json

REQUEST = "stacks"  # in the launch's folder: asks for them, and says when
STACKS = "stacks-"  # there, too: with the node's name and .txt, what py-spy read
LONGEST_WAIT_S = 10.0


def request_stacks(launch_folder: Path, at: float) -> None:
    """Ask the companions for the stacks of a launch at ``at``, seconds since the epoch. Raises ``StoreError``."""
    replace(launch_folder / REQUEST, to_json({"at": at}))


def requested_at(launch_folder: Path) -> float | None:
    """When the agent wants the stacks of this launch; None while it does not."""
    with contextlib.suppress(StoreError):
        at = (read_json(launch_folder / REQUEST) or {}).get("at")
        return float(at) if isinstance(at, (int, float)) else None
    return None


def dump_stacks(
    processes: Iterable[Process], launch_folder: Path, node: str, at: float, paces: Iterable[Pace] = ()
) -> None:
    """Write down the state and step of each rank on this node, and its stack; ranks print what is missing at ``at``."""
    ranks, steps = find_ranks(processes), {pace.rank: pace.step for pace in paces}
    states = [
        {"rank": rank, "pid": p.pid, "state": read_state(p.pid), "step": steps.get(rank)}
        for rank, p in sorted(ranks.items())
    ]
    with contextlib.suppress(StoreError):
        replace(launch_folder / f"{STATES}{node}.json", to_json({"node": node, "ranks": states}))
    deadline = time.monotonic() + min(at - time.time(), LONGEST_WAIT_S)  # the clock may be set meanwhile
    known = dump_with_pyspy(ranks, deadline)
    if known:
        text = "".join(f"{rank}: {line}\n" for rank, lines in sorted(known.items()) for line in lines)
        with contextlib.suppress(StoreError):
            replace(launch_folder / f"{STACKS}{node}.txt", text.encode("utf-8", "replace"))
    time.sleep(max(0.0, deadline - time.monotonic()))
    deaf = (p for rank, p in ranks.items() if rank not in known and catches(p, signal.SIGABRT))
    end_processes(deaf, signal.SIGABRT)


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
