"""How tasks ended, in srun's own words; the lines are those of 22.05, 24.11 and 26.05."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.facts import RankExit
from slurmtrain.slurm.srun_messages import parse_rank_exits


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: lead2: task 3: Exited with exit code 7", [RankExit(3, "lead2", 7, None, 0)]),
        ("srun: error: lead2: task 3: Segmentation fault (core dumped)", [RankExit(3, "lead2", None, 11, 0)]),
        ("srun: error: gpu-a-01: task 0: Killed", [RankExit(0, "gpu-a-01", None, 9, 0)]),
        ("srun: error: n1: task 2: Out Of Memory", [RankExit(2, "n1", None, 9, 0)]),
        (
            "srun: error: n[1-2]: tasks 0-1: Terminated",
            [RankExit(0, None, None, 15, 0), RankExit(1, None, None, 15, 0)],
        ),
        ("srun: error: n1: tasks 0,2: Aborted", [RankExit(0, "n1", None, 6, 0), RankExit(2, "n1", None, 6, 0)]),
        ("[2026-11-29T10:00:00.123] srun: error: n1: task 1: Exited with exit code 1", [RankExit(1, "n1", 1, None, 0)]),
        ("srun: error: Unable to create step for job 3: Invalid TRES", []),
        ("0: my program prints srun and error: n1: task 3", []),
    ],
)
def test_one_line(line: str, expected: list[RankExit]) -> None:
    assert parse_rank_exits([line]) == expected


def test_the_first_line_is_the_culprit_and_a_second_word_about_a_task_is_not_believed() -> None:
    lines = [
        "2: step 4 loss 0.3",
        "srun: error: lead2: task 3: Exited with exit code 7",
        "srun: launch/slurm: _step_signal: Terminating StepId=2.0",
        "srun: error: lead2: tasks 2-3: Terminated",
        "srun: error: lead1: tasks 0-1: Terminated",
    ]
    exits = parse_rank_exits(lines)
    assert [(e.rank, e.exit_code, e.signal, e.order) for e in exits] == [
        (3, 7, None, 0), (2, None, 15, 1), (0, None, 15, 2), (1, None, 15, 2),
    ]  # fmt: skip


def test_a_hostile_range_costs_nothing() -> None:
    assert len(parse_rank_exits(["srun: error: n1: tasks 0-999999999: Killed"] * 5)) == 65536


@given(st.lists(st.text(max_size=300), max_size=20))
def test_any_text_is_read(lines: list[str]) -> None:
    parse_rank_exits(lines)
