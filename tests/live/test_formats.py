"""Acceptance: checkpoints of the real libraries, damaged in each launch in another way.

Truncated, a bit flipped, half-written by a kill during the save, a part of it deleted: each time the run resumes from
the newest checkpoint that is whole, and its loss goes on from that step as if nothing had been.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from cluster import Cluster
from programs.place import place_programs
from runs import submit

pytestmark = [
    pytest.mark.skipif(
        "SLURMTRAIN_LONG_TESTS" not in os.environ, reason="some minutes long; set SLURMTRAIN_LONG_TESTS"
    ),
    pytest.mark.whole_cluster,
    pytest.mark.timeout(1200),
    pytest.mark.native_only,
]

PATTERNS = {
    "torch": "step-*.pt",
    "safetensors": "step-*.safetensors",
    "dcp": "step-*",
    "lightning": "step-*.ckpt",
    "trainer": "checkpoint-*",
}


@pytest.mark.parametrize("form", PATTERNS)
def test_each_launch_resumes_from_the_newest_whole_checkpoint(
    cluster: Cluster, store: Path, formats_python: Path, form: str
) -> None:
    program = place_programs(store) / "formats.py"
    run = submit(
        cluster, store, [str(formats_python), str(program), form], nodes=1, retry={"delay_s": 0},
        checkpoint={"pattern": PATTERNS[form]}, resources={"memory": "3G"},
    )  # fmt: skip
    run.wait_state("Completed", "Failed", "Held", "Stopped", timeout_s=900)
    log = run.log()
    assert run.status()["state"] == "Completed", log[-4000:]
    rows = [json.loads(line) for line in (run.workdir / "steps.jsonl").read_text().splitlines()]
    begun = {launch: min(r["step"] for r in rows if r["launch"] == launch) for launch in range(5)}
    assert begun == {0: 1, 1: 11, 2: 21, 3: 31, 4: 41}, log[-4000:]
    assert rows[-1]["step"] == 50
    losses: dict[int, list[float]] = {}
    for row in rows:
        losses.setdefault(row["step"], []).append(row["loss"])
    apart = {step: seen for step, seen in losses.items() if max(seen) - min(seen) > 2e-4}
    assert apart == {}, "a step that is made again has the same loss"
    aside = {path.name.partition(".set-aside-")[0] for path in run.checkpoints.glob("*.set-aside-*")}
    steps = sorted(int(re.findall(r"\d+", name)[-1]) for name in aside)
    assert {15, 25} <= set(steps) <= {15, 25, 35, 45}, "kept, under another name; what was never there is not"
    assert run.ended_states() == ["COMPLETED"], "in place: the allocation was never given back"
