"""Ranks that are slower than the others while the training goes on: told once, never ended for it.

Read from the files that the companions write once a minute; however many nodes there are, two files a second at most.
"""

from __future__ import annotations

import time
from collections import Counter

from slurmtrain.agent.beats import read_reported
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.core.paces import Pace, Straggler, find_stragglers
from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json
from slurmtrain.store.rundir import AttemptDir

_LOOK_S = 60.0
_FILES_PER_S = 2.0
_LOOKS = 3  # in a row: a slow step now and then is nothing
_MOST_TOLD = 4  # in one launch
_OLD_S = 300.0  # a node whose companion wrote nothing for so long is left out


class StragglerWatch:
    """Of one launch."""

    def __init__(self, attempt: AttemptDir, launch: int, nodes: int, record: Record) -> None:
        self._attempt = attempt
        self._launch = launch
        self._record = record
        self._interval_s = max(_LOOK_S, nodes / _FILES_PER_S)
        self._next_look = time.monotonic() + self._interval_s
        self._seen: Counter[int] = Counter()  # rank -> looks in a row
        self._told: dict[int, Straggler] = {}
        self._gone: Counter[int] = Counter()

    def look(self) -> None:
        """Say who is slow, once, and when that is over. Cheap: looks once a minute at most."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + self._interval_s
        slow = {one.rank: one for one in find_stragglers(self._read())}
        self._seen = Counter({rank: self._seen[rank] + 1 for rank in slow})
        for rank, one in slow.items():
            if self._seen[rank] >= _LOOKS and rank not in self._told and len(self._told) < _MOST_TOLD:
                self._told[rank] = one
                self._tell(one, str(one), over=False)
        self._take_back(slow)

    def _take_back(self, slow: dict[int, Straggler]) -> None:
        self._gone = Counter({rank: self._gone[rank] + 1 for rank in self._told if rank not in slow})
        for rank, count in self._gone.items():
            if count == _LOOKS:
                one = self._told[rank]
                self._tell(one, f"rank {rank} on {one.node} keeps up with the others again", over=True)

    def _tell(self, one: Straggler, words: str, *, over: bool) -> None:
        say(words)
        self._record.launch_noticed(self._launch, "straggler", words, rank=one.rank, node=one.node, over=over)

    def _read(self) -> list[Pace]:
        found: dict[int, Pace] = {}
        key = f"{self._attempt.number}.{self._launch}"
        try:
            for path in sorted(self._attempt.nodes.glob("*.json")):
                for pace in read_reported(read_json(path) or {}, key):
                    if time.time() - pace.seen_at < _OLD_S:
                        found[pace.rank] = pace
        except (OSError, StoreError):
            return []
        return list(found.values())
