"""Which tasks ``--array`` makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.array import array_task, array_task_from_dict, fold_tasks, parse_array


@pytest.mark.parametrize(
    ("text", "tasks", "limit"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-7%4", tuple(range(8)), 4),
        ("1,3,5-9:2", (1, 3, 5, 7, 9), None),
        ("5,1,1-2", (1, 2, 5), None),
        (" 7 ", (7,), None),
        ("0-15:4%1", (0, 4, 8, 12), 1),
    ],
)
def test_what_sbatch_takes(text: str, tasks: tuple[int, ...], limit: int | None) -> None:
    request = parse_array(text)
    assert (request.tasks, request.limit) == (tasks, limit)


@pytest.mark.parametrize(
    "text",
    ["", "a", "1-", "-1", "3-1", "1-4:0", "0-3%", "0-3%0", "0-3%x", "1,,2", "0-4000001", "0-99999", "1 2", "0x1"],
)
def test_what_it_does_not_take_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="task"):
        parse_array(text)


@given(st.sets(st.integers(0, 500), min_size=1))
def test_folding_and_reading_are_inverse(tasks: set[int]) -> None:
    assert set(parse_array(fold_tasks(tasks)).tasks) == tasks


def test_a_task_knows_its_array_and_survives_its_json_form() -> None:
    task = array_task(parse_array("2-8:3"), 5)
    assert task.to_dict() == {"task": 5, "count": 3, "first": 2, "last": 8}
    assert array_task_from_dict(task.to_dict()) == task
    for other in (None, {}, {"task": 5}, {**task.to_dict(), "count": "3"}, [5], {**task.to_dict(), "task": True}):
        assert array_task_from_dict(other) is None
