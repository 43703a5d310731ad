"""A run's output on a real Slurm: nodes' own logs, and following over a requeue while the log is mishandled."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from runs import LiveRun, submit

TALK = """
import os, sys, time
rank, attempt = os.environ["RANK"], os.environ["SLURMTRAIN_ATTEMPT"]
for number in range({lines}):
    print(f"attempt {{attempt}} rank {{rank}} says {{number}}", flush=True)
    time.sleep(0.5)
if "{fails}" == f"{{attempt}}:{{rank}}":
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
time.sleep(2)
"""


def _talk(store: Path, lines: int, fails: str = "") -> list[str]:
    path = store / "talk.py"
    path.write_text(TALK.format(lines=lines, fails=fails))
    path.chmod(0o644)
    return ["/usr/bin/python3", str(path)]


@pytest.mark.nodes(3)
def test_each_node_writes_its_own_log_and_every_command_reads_it(cluster: Cluster, store: Path) -> None:
    run = submit(
        cluster, store, _talk(store, 2, fails="0:2"), nodes=3, logs={"per_node": True},
        retry={"in_place": 0, "requeues": 0},
    )  # fmt: skip
    run.wait_state("Failed", "Held")
    folder = run.path / "attempts" / "000" / "launches" / "0"
    for node in range(3):
        text = (folder / f"node-{node}.log").read_text()
        assert f"{node}: attempt 0 rank {node} says 1" in text, "labelled"
        assert sum("says" in line for line in text.splitlines()) == 2, "and nobody else's"
    job_log = run.log()
    assert "says" not in job_log
    assert "attempts/000/launches/0/node-*.log" in job_log
    assert run.diagnoses()[-1]["cause"] == "cuda_oom"
    assert run.diagnoses()[-1]["rank"] == 2
    printed = run.slurmtrain("logs", run.run_id, "--json", "--grep", "says").stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    nodes = {row["rank"]: row["node"] for row in rows}
    hosts = cluster.as_user("scontrol", "show", "hostnames", run.status()["nodes"][0]).stdout.split()
    assert set(nodes) == {0, 1, 2}
    assert len(set(nodes.values())) == 3
    assert hosts[0] in nodes.values()
    of_node = run.slurmtrain("logs", run.run_id, "--node", str(nodes[2]), "--grep", "says").stdout
    assert "rank 2 says" in of_node
    assert "rank 1 says" not in of_node
    assert "rank 2 says 0" in run.slurmtrain("logs", run.run_id, "--since", "10m").stdout
    assert "CUDA out of memory" in " ".join(run.slurmtrain("explain", run.run_id).stdout.split())


class _Follower:
    """``slurmtrain logs --follow`` in the background, as the researcher types it."""

    def __init__(self, run: LiveRun) -> None:
        self.result: subprocess.CompletedProcess[str] | None = None
        self._thread = threading.Thread(target=self._follow, args=(run,))
        self._thread.start()

    def _follow(self, run: LiveRun) -> None:
        self.result = run.slurmtrain("logs", run.run_id, "--follow", check=False, timeout_s=240)

    def end(self) -> subprocess.CompletedProcess[str]:
        self._thread.join(240)
        assert self.result is not None, "it follows for ever"
        return self.result


def test_following_goes_on_over_a_requeue_and_a_log_that_is_moved_and_emptied(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, _talk(store, 24), nodes=1)
    follower = _Follower(run)
    log = run.path / "logs" / f"train-{run.job_id}.log"
    wait_until(lambda: log.exists() and "says 3" in log.read_text(), 60, "it talks")
    moved = log.with_suffix(".1")
    log.rename(moved)  # what a log rotation does: srun goes on in the old file
    wait_until(lambda: "says 6" in moved.read_text(), 60, "it talks on")
    moved.rename(log)
    cluster.as_user("scontrol", "requeue", str(run.job_id))
    wait_until(lambda: "attempt 1 rank 0 says 2" in log.read_text(), 180, "the next attempt talks")
    with log.open("r+b") as stream:
        stream.truncate()
    run.wait_state("Completed")
    done = follower.end()
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "says" in line]
    assert [line for line in said if "attempt 0" in line][:4] == [f"0: attempt 0 rank 0 says {n}" for n in range(4)]
    assert said[-1] == "0: attempt 1 rank 0 says 23"
    assert "truncated" in done.stderr
    assert "the run is over: Completed" in done.stderr
