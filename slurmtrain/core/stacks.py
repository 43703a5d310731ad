"""Stacks of all ranks after a hang: who waits where, and which ranks are the odd ones out.

Read from what Python's faulthandler prints on SIGABRT (``Current thread 0x… (most recent call first):``); what py-spy
reads is written in the same form (``agent.pyspy``). Lines come with the rank that printed them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_HEAD = re.compile(r"\s*(Current thread|Thread) (0x[0-9a-f]{1,16})\b.*\(most recent call first\):?\s*$")
_FRAME = re.compile(r'\s*File "([^"\n]{1,1000})", line (\d{1,9}) in (\S{1,200})')
_MAX_FRAMES = 200
_MAX_RANKS = 100_000

# A rank whose innermost frames lie here waits for the others.
_WAITS_FOR_OTHERS = re.compile(
    r"(?i)torch/distributed/|torch/nn/parallel/|/(?:nccl|gloo|mpi4py|horovod|deepspeed/comm|deepspeed/runtime|megatron/core/pipeline)"
    r"|jax/experimental/multihost|torch/autograd/"
)
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3|<frozen|<string>")


@dataclass(frozen=True, slots=True)
class Frame:
    """One call. ``file`` as it was printed."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file.rpartition('/')[2]}:{self.line})"


@dataclass(frozen=True, slots=True)
class Where:
    """Where a rank stands: innermost call first."""

    frames: tuple[Frame, ...]

    @property
    def waits_for_others(self) -> bool:
        """Inside a collective operation."""
        return any(_WAITS_FOR_OTHERS.search(frame.file) for frame in self.frames[:6])

    @property
    def place(self) -> Frame | None:
        """The innermost call of the training's own code; of any code where it has none."""
        own = next((frame for frame in self.frames if not _LIBRARY.search(frame.file)), None)
        return own or (self.frames[0] if self.frames else None)

    @property
    def own(self) -> tuple[Frame, ...]:
        """The calls of the training's own code; all of them where it has none."""
        return tuple(frame for frame in self.frames if not _LIBRARY.search(frame.file)) or self.frames


@dataclass(frozen=True, slots=True)
class OddRanks:
    """Ranks that stand elsewhere than the others, and the two places."""

    ranks: tuple[int, ...]
    where: Frame | None  # None where they printed no stack: stopped, or deaf in a call of C code
    others: Frame | None


def parse_stacks(lines: Iterable[tuple[int, str]]) -> dict[int, Where]:
    """(rank, line) in the order of the log → where each rank's main thread stands.

    The thread that got the signal is the main one: of several stacks of a rank the ``Current thread``'s counts.
    """
    found: dict[int, list[Frame]] = {}
    open_for: dict[int, bool] = {}
    settled: set[int] = set()
    for rank, line in lines:
        head = _HEAD.match(line)
        if head is not None:
            current = head[1] == "Current thread"
            open_for[rank] = rank not in settled and len(found) < _MAX_RANKS
            if open_for[rank]:
                found[rank] = []
            if current:
                settled.add(rank)
            continue
        frame = _FRAME.match(line) if open_for.get(rank) else None
        if frame is not None and len(found[rank]) < _MAX_FRAMES:
            found[rank].append(Frame(frame[1], int(frame[2]), frame[3]))
    return {rank: Where(tuple(frames)) for rank, frames in found.items() if frames}


def find_odd_ranks(stacks: Mapping[int, Where], ranks: int | None = None) -> OddRanks | None:
    """The ranks for which the others wait; None where all stand alike, or nobody stands out.

    ``ranks`` is how many there are: one that printed nothing while the others did is odd, too.
    """
    silent = tuple(rank for rank in range(ranks or 0) if rank not in stacks)
    if stacks and silent and len(silent) < len(stacks):
        return OddRanks(silent, None, _usual(stacks.values()))
    waiting = {rank: where for rank, where in stacks.items() if where.waits_for_others}
    busy = {rank: where for rank, where in stacks.items() if rank not in waiting}
    if waiting and busy and len(busy) <= len(waiting):
        return OddRanks(tuple(sorted(busy)), _usual(busy.values()), _usual(waiting.values()))
    odd = _find_first_to_part(stacks)
    if not odd:
        return None
    return OddRanks(odd, _usual(stacks[rank] for rank in odd), _usual(w for r, w in stacks.items() if r not in odd))


def _find_first_to_part(stacks: Mapping[int, Where]) -> tuple[int, ...]:
    """From the outermost call on: those that are elsewhere than most, at the first call at which there are any.

    A loop that waits has several lines, so where no line has most of the ranks the function counts.
    """
    paths = {rank: where.own[::-1] for rank, where in stacks.items()}
    for depth in range(max(map(len, paths.values()), default=0)):
        calls = {rank: path[depth] if depth < len(path) else None for rank, path in paths.items()}
        odd = _find_elsewhere(calls)
        if odd is None:
            odd = _find_elsewhere({rank: call and (call.file, call.function) for rank, call in calls.items()})
        if odd is None or odd:
            return odd or ()
    return ()


def _find_elsewhere(places: Mapping[int, object]) -> tuple[int, ...] | None:
    """The ranks that are elsewhere than most; None where no place has most of them."""
    usual, count = Counter(places.values()).most_common(1)[0]
    if count <= len(places) / 2:
        return None
    return tuple(sorted(rank for rank, place in places.items() if place != usual))


def _usual(stacks: Iterable[Where]) -> Frame | None:
    return next(iter(Counter(where.place for where in stacks).most_common(1)), (None, 0))[0]
