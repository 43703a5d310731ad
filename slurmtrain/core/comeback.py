"""When a requeued job may start again: neither before Slurm has cleaned up behind it, nor long after.

slurmctld keeps a start time that still lies ahead when the clean-up ends (``batch_requeue_fini``) and sets now + 121 s
otherwise. Once the start time is there nothing makes it look: it does so when something happens to a job, every 60 s,
and in the backfill every 30 s. An update of a job makes it look within a second, and a second update soon after that
3 s later (``batch_sched_delay``): so an agent that asks twice and is gone in between is back after those 3 s, provided
that the clean-up fits into them. Where it does not the wait is as long as the clean-ups before took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurmtrain.core.run import Run

QUICK_S = 3  # from the first update to slurmctld's second look: batch_sched_delay
LEAVES_S = 1.1  # after the first update slurmctld has looked for the first time, and the agent leaves
UNKNOWN_S = 8  # where an epilog runs whose length nobody has seen
SHORTEST_S, LONGEST_S = 3, 120  # Slurm's own delay is 121 s
_REMEMBERED = 5
_SLACK_S = 2


@dataclass(frozen=True, slots=True)
class Comeback:
    """``quick``: ask twice, ``seconds`` from the first time. Else once, ``seconds`` from the moment of leaving."""

    quick: bool
    seconds: int


def choose_comeback(clean_ups: Sequence[float], *, wanted_s: int | None, epilog: bool) -> Comeback:
    """How to come back, from the clean-up times seen so far (seconds, oldest first).

    ``wanted_s`` is what the job or the site asks for, which nothing overrides; ``epilog`` that one is configured.
    """
    if wanted_s is not None:
        return Comeback(quick=False, seconds=wanted_s)
    seen = [s for s in clean_ups if 0 <= s <= LONGEST_S][-_REMEMBERED:]
    if not seen:
        return Comeback(quick=False, seconds=UNKNOWN_S) if epilog else Comeback(quick=True, seconds=QUICK_S)
    if max(seen) <= QUICK_S - LEAVES_S:
        return Comeback(quick=True, seconds=QUICK_S)
    return Comeback(quick=False, seconds=min(LONGEST_S, max(SHORTEST_S, math.ceil(max(seen)) + _SLACK_S)))


def clean_up_times(run: Run) -> Iterator[float]:
    """Seconds from leaving the job to the end of Slurm's clean-up, of each requeue that came back, oldest first."""
    for attempt in run.attempts:
        if attempt.came_back is not None:
            yield attempt.came_back.clean_up_s
