"""Where a run's hours went, as `explain` adds them up, held against Slurm's accounting and the training's own record.

One training dies of a fault (restart in place), then of its node (requeue), then comes to its end. Slurm's times are
whole seconds, and between them and ours lie the start of a script and of a step: three seconds for each stretch.
"""

from __future__ import annotations

import json
import math
import statistics
from datetime import datetime
from pathlib import Path

import pytest
from cluster import Cluster
from own_starts import place
from runs import PYTHON, submit

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs_accounting]

STRETCH_S = 3.0
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
from slurmtrain_training import atomic_save, checkpoint_dir, heartbeat, resume_from

key = f"{os.environ['SLURMTRAIN_ATTEMPT']}.{os.environ['SLURMTRAIN_LAUNCH']}"


def note(**facts):
    facts.update(launch=key, slurm_step=os.environ["SLURM_STEP_ID"], at=time.time())
    with open("notes.jsonl", "a") as stream:
        stream.write(json.dumps(facts) + "\\n")


path = resume_from()
step = json.loads(path.read_text())["step"] if path else 0
note(event="start", step=step)
while step < 60:
    step += 1
    time.sleep(0.4)
    print(f"step {step}/60 loss {1 / step:.3f}", flush=True)
    if step % 10 == 0:
        began = time.time()
        with atomic_save(checkpoint_dir() / f"step-{step:03d}.json") as temporary:
            temporary.write_text(json.dumps({"step": step}))
            time.sleep(0.5)
        note(event="saved", step=step, took=time.time() - began)
    heartbeat(step=step)
    if (key, step) == ("0.0", 36):
        note(event="fault", step=step)
        os.kill(os.getpid(), signal.SIGSEGV)
    if (key, step) == ("0.1", 48):
        note(event="fault", step=step)
        print("RuntimeError: CUDA error: GPU is lost", file=sys.stderr, flush=True)
        os._exit(1)
note(event="end", step=step)
"""


def when(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_the_hours_add_up_to_what_slurm_accounted(cluster: Cluster, store: Path) -> None:
    place(store, "trainer.py")
    program = store / "programs" / "hours.py"
    program.write_text(PROGRAM)
    program.chmod(0o644)
    run = submit(
        cluster, store, [PYTHON, str(program)], nodes=1, checkpoint={"pattern": "step-*.json"},
        retry={"exclude_nodes": False}, resources={"sbatch_options": ["--begin=now+3"]},
    )  # fmt: skip
    run.wait_state("Completed", "Held", "Failed")
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["REQUEUED", "COMPLETED"], run.log()
    told = json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout)["time"]
    fields = ("JobID", "State", "Submit", "Eligible", "Start", "End", "Suspended")
    first, second = cluster.sacct(run.job_id, fields=fields)
    assert {first["Suspended"], second["Suspended"]} == {"00:00:00"}

    # the whole, and the time without nodes
    uses = ("kept", "lost", "open", "unknown", "starting", "restarting", "waiting", "held")
    assert math.isclose(sum(told[f"{use}_s"] for use in uses), told["whole_s"], abs_tol=1.0), told
    assert abs(told["whole_s"] - (when(second["End"]) - when(first["Submit"]))) < 2 * STRETCH_S, (told, first, second)
    waited = when(first["Start"]) - when(first["Submit"]) + when(second["Start"]) - when(first["End"])
    assert abs(told["waiting_s"] - waited) < 2 * STRETCH_S, (told, first, second)
    assert told["held_s"] == told["open_s"] == told["unknown_s"] == 0

    # the training: as long as Slurm says that its steps ran
    notes = [json.loads(line) for line in (run.workdir / "notes.jsonl").read_text().splitlines()]
    launches = [note["launch"] for note in notes if note["event"] == "start"]
    assert launches == ["0.0", "0.1", "1.0"]
    ran = {(note["launch"].partition(".")[0], note["slurm_step"]) for note in notes}
    steps = cluster.sacct(run.job_id, steps=True, fields=("JobID", "Start", "End"))
    attempt, trained = -1, 0.0
    for row in steps:
        attempt += "." not in row["JobID"]
        if (str(attempt), row["JobID"].rpartition(".")[2]) in ran:
            trained += when(row["End"]) - when(row["Start"])
    assert trained > 25
    assert abs(told["training_s"] - trained) < 3 * STRETCH_S, (told, steps)
    between = sum(when(row["End"]) - when(row["Start"]) for row in (first, second)) - trained
    assert abs(told["starting_s"] + told["restarting_s"] - between) < 3 * STRETCH_S, (told, first, second, steps)

    # what was lost: from the save that the next launch began with to the death, twice
    saved = {(note["launch"], note["step"]): note["at"] for note in notes if note["event"] == "saved"}
    faults = [note for note in notes if note["event"] == "fault"]
    resumed = [note["step"] for note in notes if note["event"] == "start"]
    assert resumed == [0, 30, 40]
    died_at = [fault["at"] for fault in faults]
    lost = died_at[0] - saved["0.0", 30] + died_at[1] - saved["0.1", 40]
    assert told["failures"] == 2
    assert abs(told["lost_s"] - lost) < STRETCH_S, (told, notes)

    # the interval that they suggest
    save_s = statistics.median(note["took"] for note in notes if note["event"] == "saved")
    assert math.isclose(told["save_s"], save_s, rel_tol=0.3)
    assert math.isclose(told["failure_every_s"], told["training_s"] / 2, rel_tol=0.05)
    assert math.isclose(told["suggested_save_every_s"], math.sqrt(2 * save_s * trained / 2), rel_tol=0.3)
    assert abs(told["save_every_s"] - (10 * 0.4 + save_s)) < 1.5
    text = " ".join(run.slurmtrain("explain", run.run_id).stdout.split())
    assert "trained and lost" in text
