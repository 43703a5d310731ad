"""The end of a log, sorted by rank: with a hundred ranks the last lines of a log are those of one of them."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from slurmtrain.hosts.files import open_file

_LABEL = re.compile(rb"[ \t]*(\d{1,6}): ?(?:\[[A-Za-z_-]*(\d{1,5})\]:?)?")
_MAX_LINE = 2000
_MOST_LINES, _FEWEST_LINES = 200, 5
_MOST_RANKS = 20_000
UNLABELLED = "without a rank"


def read_tails(path: Path, offset: int = 0, limit: int = 32 << 20) -> dict[str, list[str]]:
    """Label → its last lines, of the last ``limit`` bytes behind ``offset``. Raises ``OSError``.

    A label is what srun writes (``3``), with torchrun's local rank where there is one (``1/7``).
    """
    with open_file(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        begin = offset if offset <= size else 0  # cut off since
        stream.seek(max(begin, size - limit))
        tails: dict[str, deque[str]] = {}
        left = limit
        while left > 0 and (line := stream.readline(min(left, 1 << 20))):
            left -= len(line)
            _add(tails, line)
    return {label: list(tails[label]) for label in sorted(tails, key=_order)}


def _add(tails: dict[str, deque[str]], line: bytes) -> None:
    match = _LABEL.match(line)
    label, text = UNLABELLED, line
    if match:
        label = match[1].decode() + (f"/{match[2].decode()}" if match[2] else "")
        text = line[match.end() :]
    if label not in tails and len(tails) >= _MOST_RANKS:
        return
    shown = text.rstrip(b"\r\n").rpartition(b"\r")[2][-_MAX_LINE:]  # of a progress bar its last state
    tails.setdefault(label, deque(maxlen=_MOST_LINES)).append(shown.decode("utf-8", "replace"))


def _order(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.split("/")) if label != UNLABELLED else (1 << 30,)


def format_tails(tails: dict[str, list[str]], size: int) -> str:
    """All ranks, each with as many of its last lines as fit into ``size`` characters in all, the same for each."""
    lines = _MOST_LINES
    while lines > _FEWEST_LINES and sum(len(line) + 1 for tail in tails.values() for line in tail[-lines:]) > size:
        lines = max(_FEWEST_LINES, lines // 2)
    return "\n".join(_section(label, tail[-lines:]) for label, tail in tails.items())


def _section(label: str, lines: list[str]) -> str:
    node, slash, local = label.partition("/")
    title = f"node {node}, rank {local} of it" if slash else label if label == UNLABELLED else f"rank {label}"
    return f"=== {title} ===\n" + "".join(f"{line}\n" for line in lines)
