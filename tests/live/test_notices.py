"""What is told of a running launch, and nothing is done about: checkpoints that are too old, a slow rank."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from own_starts import place
from runs import PYTHON, LiveRun, submit

pytestmark = pytest.mark.timeout(900)

AGES = """
import os, time
from pathlib import Path

folder, step = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"]), 0
Path("started").touch()
while not os.path.exists("finish"):
    step += 1
    time.sleep(0.2)
    print(f"step {step}/1000 loss {1 / step:.3f}", flush=True)
    if os.path.exists("save"):
        Path("save").unlink()
        (folder / f".step-{step}.json.tmp").write_text('{"step": 1}')
        (folder / f".step-{step}.json.tmp").rename(folder / f"step-{step}.json")
"""


def wait_reason(run: LiveRun, pattern: str, timeout_s: float = 60) -> re.Match[str]:
    """Until ``status`` gives this reason; it is asked when something was written down."""

    seen = -1

    def look() -> re.Match[str] | None:
        nonlocal seen
        before, seen = seen, sum(path.stat().st_size for path in run.path.glob("journal/*.jsonl"))
        return re.fullmatch(pattern, run.status()["reason"]) if seen != before else None

    found = wait_until(look, timeout_s, f"status says {pattern!r}", 0.5)
    assert found is not None
    return found


def explained(run: LiveRun) -> str:
    return " ".join(run.slurmtrain("explain", run.run_id).stdout.split())


def test_a_training_that_saves_nothing_for_too_long_is_told(cluster: Cluster, store: Path) -> None:
    """Once, in the log, by status and explain; it is over with the next checkpoint, and begins anew from there."""
    program = store / "ages.py"
    program.write_text(AGES)
    program.chmod(0o644)
    checkpoint = {"pattern": "step-*.json", "max_age_s": 8}
    run = submit(cluster, store, [PYTHON, str(program)], nodes=1, checkpoint=checkpoint)
    lost = "a failure now would lose all that was learnt since"
    first = wait_reason(run, rf"no checkpoint (\d+) s after the start \(step-\*\.json in checkpoints\): {lost}")
    since = time.time() - (run.workdir / "started").stat().st_mtime
    assert 8 <= int(first[1]) <= since + 4
    assert "No checkpoint" in explained(run)

    (run.workdir / "save").touch()
    wait_reason(run, "")
    assert "no checkpoint" not in explained(run).lower().partition("timeline")[0]
    (saved,) = run.checkpoints.glob("step-*.json")

    second = wait_reason(run, rf"no checkpoint for (\d+) s \(the newest is {saved.name}\): {lost}")
    assert 8 <= int(second[1]) <= time.time() - saved.stat().st_mtime + 2
    told = re.findall(r"^slurmtrain: warning: no checkpoint", run.log(), re.MULTILINE)
    assert len(told) == 2, "once each time"

    (run.workdir / "finish").touch()
    run.wait_state("Completed")
    timeline = run.slurmtrain("explain", run.run_id, "--timeline").stdout
    assert f"{saved.name} was saved" in timeline
    assert run.ended_states() == ["COMPLETED"], "nothing was done about it"


@pytest.mark.skipif("SLURMTRAIN_LONG_TESTS" not in os.environ, reason="some minutes long; set SLURMTRAIN_LONG_TESTS")
@pytest.mark.nodes(2)
@pytest.mark.native_only
def test_a_rank_that_others_wait_for_is_named_and_nothing_is_ended(
    cluster: Cluster, store: Path, torch_python: Path
) -> None:
    """A real DDP training on two nodes: all ranks make the same steps, one has more work in each."""
    command = [str(torch_python), place(store, "straggler.py")]
    run = submit(cluster, store, command, nodes=2, ranks=2, time_limit="30", resources={"memory": "2G"})
    told = r"rank 2 on (\S+) is slow: ([\d.]+) s at work in a step, the others ([\d.]+) s"
    found = wait_reason(run, told, timeout_s=420)
    starts = re.findall(r'^(\d): \{"starts": "(\d+)", "node": "(\S+)"\}', run.log(), re.MULTILINE)
    assert sorted(rank for rank, _, _ in starts) == ["0", "1", "2", "3"], "no launch but the first"
    assert found[1] == {rank: node for rank, _, node in starts}["2"]
    assert 0.4 < float(found[2]) < 2.0
    assert float(found[3]) < float(found[2]) / 2
    assert re.search(f"Rank 2 on {found[1]} is slow", explained(run))
    rows = [json.loads(line) for path in run.path.glob("journal/*.jsonl") for line in path.open()]
    kept = [(row["rank"], row["node"]) for row in rows if row["kind"] == "launch_noticed"]
    assert kept == [(2, found[1])], "the journal keeps rank and node"
    assert len(re.findall(f"^slurmtrain: {told}$", run.log(), re.MULTILINE)) == 1

    (run.workdir / "mended").touch()
    wait_reason(run, "", timeout_s=420)
    assert f"rank 2 on {found[1]} keeps up with the others again" in run.log()
    (run.workdir / "finish").touch()
    run.wait_state("Completed")
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"]
    assert len(run.rank_processes()) == 0
