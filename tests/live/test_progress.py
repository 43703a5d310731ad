"""How far a training is, from nothing but what its library prints: tqdm, JSON lines, Keras, the Trainer, Lightning.

`status` shows it with the expected end, and a launch that came further than the one before has made progress: there
are no checkpoints here, and no heartbeat.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from programs import progress
from programs.place import place_programs
from runs import LiveRun, submit

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]

ENOUGH = 2 * progress.DIES_AT
LAG_STEPS = 25  # srun hands on what has no end of line by the kilobyte


def steps_of(run: LiveRun) -> list[dict[str, Any]]:
    path = run.workdir / "steps.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("form", ["tqdm", "json", "keras", "trainer", "lightning"])
def test_what_a_library_prints_tells_how_far_it_is(
    cluster: Cluster, store: Path, framework_python: Path, form: str
) -> None:
    command = [str(framework_python), str(place_programs(store) / "progress.py"), form]
    run = submit(
        cluster, store, command, nodes=1, retry={"delay_s": 0}, resources={"memory": "3G"}, scene={"enabled": False}
    )

    def look() -> dict[str, Any] | None:
        row = run.status()
        told = dict(row["progress"] or {})
        return told if row["launch"] == 1 and (told.get("step") or 0) >= ENOUGH else None

    def came_further() -> bool:
        return any(row["launch"] == 1 and row["step"] >= ENOUGH for row in steps_of(run)) or run.ended

    wait_until(came_further, 240, "the second launch comes further", 0.5)
    try:
        told = wait_until(look, 60, "status tells the step of the second launch", 2.0)
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{run.status()}\n--- log\n{run.log()[-4000:]}") from exc
    assert told is not None
    now, rows = time.time(), [row for row in steps_of(run) if row["launch"] == 1]
    assert rows[-1]["step"] - LAG_STEPS <= told["step"] <= rows[-1]["step"] + 1, (told, rows[-1])
    assert any(abs(told["loss"] - row["loss"]) < 0.01 + 0.02 * row["loss"] for row in rows[-LAG_STEPS - 5 :]), told
    speed = (rows[-1]["step"] - rows[-11]["step"]) / (rows[-1]["at"] - rows[-11]["at"])
    assert speed / 3 < told["steps_per_s"] < speed * 3, told
    if form != "lightning":  # whose bars tell the length of an epoch, not how many there are
        assert told["target_step"] == progress.STEPS
        left = (progress.STEPS - rows[-1]["step"]) / speed
        assert now + left / 3 < told["expected_end"] < now + left * 3, told
    shown = " ".join(run.slurmtrain("status", run.run_id).stdout.split())
    assert re.search(r"step \d+" + ("" if form == "lightning" else f" of {progress.STEPS}"), shown), shown

    (run.workdir / "die").touch()
    wait_until(lambda: run.log().count("slurmtrain: decision:") >= 2, 60, "the second failure is decided about")
    decided = re.findall(r"^slurmtrain: decision: (.*)$", run.log(), re.MULTILINE)
    assert all(words.startswith("restart_in_place") and "a retry may help" in words for words in decided), decided
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")
