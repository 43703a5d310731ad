"""Stragglers: who is told, and who is not."""

from __future__ import annotations

from slurmtrain.core.paces import Pace, find_last, find_stragglers


def at(
    rank: int, step: int, *, when: float = 1000, seen: float = 1000, pace: float | None = 1.0, busy: float | None = None
) -> Pace:
    return Pace(rank, f"n{rank}", step, when, seen, pace, busy)


def told(*paces: Pace) -> list[str]:
    return [str(one) for one in find_stragglers(paces)]


def test_ranks_that_move_together_are_no_stragglers() -> None:
    assert told(at(0, 100), at(1, 100), at(2, 99)) == []
    assert told(at(0, 100), at(1, 100, pace=1.5)) == []
    assert told(at(0, 5)) == []


def test_nodes_that_were_looked_at_a_minute_apart_are_compared_at_one_moment() -> None:
    assert (
        told(at(0, 100, when=1000, seen=1000), at(1, 160, when=1060, seen=1060), at(2, 130, when=1030, seen=1030)) == []
    )


def test_all_ranks_stand_in_a_long_pause_and_none_is_behind() -> None:
    assert told(at(0, 100, when=1000, seen=1000), at(1, 100, when=1000, seen=1060), at(2, 100, seen=1030)) == []


def test_a_rank_far_behind_is_told_with_its_node() -> None:
    assert told(at(0, 500), at(1, 440), at(2, 501)) == [
        "rank 1 on n1 is behind: at step 440 when the others were at 500"
    ]
    assert told(at(0, 500, pace=0.01), at(1, 440, pace=0.01), at(2, 501, pace=0.01)) == [], "less than a second"


def test_a_slow_rank_is_told_by_its_own_work_where_steps_take_all_the_same_time() -> None:
    paces = [at(0, 10, busy=0.2), at(1, 10, busy=0.21), at(2, 10, busy=0.7)]
    assert told(*paces) == ["rank 2 on n2 is slow: 0.7 s at work in a step, the others 0.205 s"]
    assert told(at(0, 10), at(1, 10), at(2, 10, pace=9)) == ["rank 2 on n2 is slow: 9 s for a step, the others 1 s"]


def test_where_many_are_slow_nobody_is() -> None:
    assert told(*[at(rank, 10, pace=1 if rank < 3 else 9) for rank in range(6)]) == []


def test_the_last_of_all_is_one_rank_or_none() -> None:
    assert find_last({0: 5, 1: 4, 2: 9}) == (1, 4, 9)
    assert find_last({0: 4, 1: 4, 2: 9}) is None
    assert find_last({0: 4}) is None
