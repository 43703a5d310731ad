"""A check in a process of its own, with bounds on time and memory.

A damaged pickle may ask for any amount of memory, and a file system that hangs holds whoever reads from it: neither
may take the agent along.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmtrain.checkpoints.check import CHEAP_S, check
from slurmtrain.checkpoints.metered import MEMORY_BYTES
from slurmtrain.checkpoints.model import Health, Verdict
from slurmtrain.checkpoints.own import UnsureError, build_format
from slurmtrain.hosts.children import Ended, gather, start

LOAD_S = 30.0  # for a format of the user's own
_MOST_ANSWER = 1 << 20  # bytes of a verdict
_LONGEST_WHY = 500

_ROOT = Path(__file__).parents[2]  # the source tree, site-packages, or the agent's archive
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); from slurmtrain.checkpoints.apart import main; main()"


def check_apart(
    path: Path,
    *,
    deep: bool = False,
    marker: str | None = None,
    parts: frozenset[str] = frozenset(),
    own: Path | None = None,
    limit_s: float = 3 * CHEAP_S,
) -> Verdict:
    """As ``check.check``; ``UNREADABLE`` where the check does not end within ``limit_s``. Never raises."""
    order = {"path": os.fspath(path), "deep": deep, "marker": marker, "parts": sorted(parts)}
    order["own"] = os.fspath(own) if own is not None else None
    try:
        answer, code, _ = _ask(order, limit_s)
    except OSError as exc:
        return Verdict(Health.UNREADABLE, "", f"{path.name} cannot be checked: {exc.strerror or exc}")
    if code is None:
        return Verdict(Health.UNREADABLE, "", f"{path.name} could not be read within {limit_s:.0f} s")
    return _read(answer, path, code)


def try_format(name: str, source: str) -> str | None:
    """Load a format of the user's own; one sentence about why it does not load. Whatever it does, it does it apart."""
    try:
        answer, code, flooded = _ask({"format": name, "source": source}, LOAD_S)
    except OSError as exc:
        return f"the format {name} cannot be tried: {exc.strerror or exc}"
    if flooded:
        return f"the format {name} answers with more than {_MOST_ANSWER >> 20} MiB"
    if code is None:
        return f"the format {name} does not load within {LOAD_S:.0f} s"
    try:
        why = json.loads(answer)["why"]
        return " ".join(str(why).split())[:_LONGEST_WHY] if why is not None else None
    except (ValueError, KeyError, TypeError):
        ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return f"the format {name} does not load: it ended its process with {ended}"


def _ask(order: Mapping[str, object], limit_s: float) -> Ended:
    """Raises ``OSError`` where no child can be started."""
    child = start([sys.executable, "-I", "-c", _CHILD, str(_ROOT)], listens=True)
    return dict(gather({0: child}, time.monotonic() + limit_s, _MOST_ANSWER, json.dumps(order).encode()))[0]


def _read(answer: bytes, path: Path, code: int) -> Verdict:
    """A check that died says nothing about it: a full node, a job that ends, a Python that does not start."""
    try:
        found = json.loads(answer)
        return Verdict(Health(found["health"]), found["format"], found["detail"], found["step"], found["deep"])
    except (ValueError, KeyError, TypeError):
        return Verdict(
            Health.UNREADABLE, "", f"{path.name} cannot be checked: the check of it ended with exit code {code}"
        )


def main() -> None:
    """The child: one order on standard input, one verdict on standard output."""
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    order = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w")  # what a format of the run's own prints, or starts, is no verdict
    os.dup2(2, 1)
    shown = _load_format(order) if "format" in order else _check(order)
    with answer:
        json.dump(shown, answer)


def _load_format(order: dict[str, str]) -> dict[str, object]:
    try:
        build_format(order["format"], order["source"])
    except UnsureError as exc:
        return {"why": str(exc.strerror).encode("utf-8", "replace").decode()}
    return {"why": None}


def _check(order: dict[str, Any]) -> dict[str, object]:
    own = Path(order["own"]) if order["own"] else None
    found = check(
        Path(order["path"]), deep=order["deep"], marker=order["marker"], parts=frozenset(order["parts"]), own=own
    )
    detail = found.detail.encode("utf-8", "replace").decode()
    return {
        "health": found.health.value,
        "format": found.format,
        "detail": detail,
        "step": found.step,
        "deep": found.deep,
    }


def _limit(kind: int, most: int) -> None:
    """At most so much; a hard limit that is lower (``ulimit -v``, Slurm's VSizeFactor) stays as it is."""
    hard = resource.getrlimit(kind)[1]
    lowest = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (lowest, lowest))
