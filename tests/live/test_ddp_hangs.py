"""Acceptance: a real DDP training in which one rank stands still, four times, each time in another way.

It is found within the time-out, the rank is named, the launch ended, and the training goes on from its checkpoint.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from cluster import Cluster
from programs.place import place_programs
from runs import submit

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.native_only,
]

SAID = (
    r"rank 1 stood in stand_in_a_lock \(ddp_hangs\.py:\d+\), the others in",
    r"rank 1 stood in enter_a_collective_alone \(ddp_hangs\.py:\d+\), the others in",
    r"rank 1 stood in load_for_ever \(ddp_hangs\.py:\d+\), the others in",
    r"rank 1 on \S+ is stopped by a signal",
)


def test_a_rank_that_stands_still_is_found_and_named_and_the_training_goes_on(
    cluster: Cluster, store: Path, torch_python: Path
) -> None:
    program = place_programs(store) / "ddp_hangs.py"
    limits = {"timeout_s": 15, "startup_s": 0}  # a busy machine may keep all ranks silent for some seconds
    run = submit(
        cluster, store, [str(torch_python), str(program)], nodes=1, ranks=3, hang=limits, retry={"delay_s": 0},
        checkpoint={"pattern": "step-*.pt"},
    )  # fmt: skip
    run.wait_state("Completed", "Failed", "Held", "Stopped", timeout_s=600)
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"], "in place: the allocation was never given back"
    found = run.diagnoses()[:4]  # the training has said that it is finished: how its processes end matters no more
    assert [(row["cause"], row["rank"]) for row in found] == [("hang_no_progress", 1)] * 4
    for row, said in zip(found, SAID, strict=True):
        assert re.search(said, row["sentence"]), row["sentence"]
    silent = [float(text) for text in re.findall(r"no sign of life for (\d+) s", run.log())]
    assert max(silent[:4]) < 30, silent
    steps = [int(step) for step in re.findall(r"^0: step (\d+)/25 loss", run.log(), re.MULTILINE)]
    assert steps[-1] == 25
    resumed = [after for before, after in itertools.pairwise(steps) if after <= before]
    assert resumed == [5, 9, 13, 17], "from the checkpoint before the hang, each time"
    losses: dict[str, set[str]] = {}
    for step, loss in re.findall(r"^0: step (\d+)/25 loss (\S+)", run.log(), re.MULTILINE):
        losses.setdefault(step, set()).add(loss)
    assert [step for step, seen in losses.items() if len(seen) != 1] == [], (
        "a step that is made again has the same loss"
    )
