"""Acceptance: checkpoints of the real libraries, damaged in many ways by a training that dies.

Truncated, a bit flipped, half-written by a kill during the save, a part of it lost, deleted while it is checked: each
time the run resumes from the newest checkpoint that is whole, and its loss goes on from that step.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cluster import Cluster
from programs.place import place_programs
from runs import submit

pytestmark = [pytest.mark.timeout(900), pytest.mark.native_only]

PATTERNS = {
    "torch": "step-*.pt",
    "safetensors": "step-*.safetensors",
    "dcp": "step-*",
    "deepspeed": "global_step*",
    "lightning": "step-*.ckpt",
    "trainer": "checkpoint-*",
}
VANISHES = """
import shutil

def matches(path):
    asked = path.parent / ".vanish"
    if asked.exists() and asked.read_text() == path.name:
        asked.unlink()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return False

def check(path, deep):
    return None
"""


@pytest.mark.parametrize("form", PATTERNS)
def test_each_launch_resumes_from_the_newest_whole_checkpoint(
    cluster: Cluster, store: Path, formats_python: Path, form: str
) -> None:
    program = place_programs(store) / "formats.py"
    (store / "more" / "formats").mkdir(parents=True)
    (store / "more" / "formats" / "vanishes.py").write_text(VANISHES)
    run = submit(
        cluster, store, [str(formats_python), str(program), form], nodes=1, ranks=2 if form == "deepspeed" else 1,
        retry={"delay_s": 0}, checkpoint={"pattern": PATTERNS[form]}, resources={"memory": "3G"},
        scene={"enabled": False}, env={"SLURMTRAIN_PATH": str(store / "more")},
    )  # fmt: skip
    run.wait_state("Completed", "Failed", "Held", "Stopped", timeout_s=300)
    log = run.log()
    assert run.status()["state"] == "Completed", log[-6000:]
    rows = [json.loads(line) for line in (run.workdir / "steps.jsonl").read_text().splitlines()]
    begun = {launch: min(r["step"] for r in rows if r["launch"] == launch) for launch in range(3)}
    assert begun == {0: 1, 1: 11, 2: 16}, log[-6000:]
    assert rows[-1]["step"] == 30
    losses: dict[int, list[float]] = {}
    for row in rows:
        losses.setdefault(row["step"], []).append(row["loss"])
    apart = {step: seen for step, seen in losses.items() if max(seen) - min(seen) > 2e-4}
    assert apart == {}, "a step that is made again has the same loss"
    assert not (run.path / "checkpoints" / ".vanish").exists(), (
        "deleted under whoever looked first: pin, verdict, choice"
    )
    aside = [path.name for path in run.path.glob("checkpoints.set-aside/*")]
    steps = sorted(int(re.findall(r"\d+", name)[0]) for name in aside)
    assert {15, 20} <= set(steps) <= {15, 20, 25}, "kept; of what is lost, or had another name yet, nothing is left"
    assert re.search(r"Traceback.*\n.*slurmtrain", log) is None
    assert run.ended_states() == ["COMPLETED"], "in place: the allocation was never given back"
