"""A person's scancel is never undone, whenever it comes, by the user or by root: random moments in the life of runs
that fail all the time.

Each run crashes half a second after each launch and gets further each time, so that the agent restarts it in place,
requeues it, and waits in the queue in turn: the cancel hits running ranks, decisions, requeues and pending jobs.

``SLURMTRAIN_CANCELS=1000`` makes it a long run, ``SLURMTRAIN_CANCELS_AT_ONCE`` says how many runs live side by side.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from runs import LiveRun, submit

RUNS = int(os.environ.get("SLURMTRAIN_CANCELS", "100"))
AT_ONCE = int(os.environ.get("SLURMTRAIN_CANCELS_AT_ONCE", "6"))
WAVE = 100  # then all are looked at, before Slurm forgets them
SETTLE_S = 12.0
CRASHES = 'sleep 0.4; : >"$SLURMTRAIN_CHECKPOINT_DIR/step-$(date +%s%3N)"; kill -SEGV $$'
RETRY = {"in_place": 1, "requeues": 100, "attempts": 100, "delay_s": 0}


@pytest.mark.whole_cluster  # a hundred submissions want the machine for themselves
@pytest.mark.timeout(7200)
def test_scancel_at_random_moments_stays_cancelled(cluster: Cluster, store: Path) -> None:
    rng = random.Random(int(time.time()))
    hit: Counter[str] = Counter()
    attempts = 0
    for first in range(0, RUNS, WAVE):
        numbers = range(first, min(first + WAVE, RUNS))
        moments = {number: rng.uniform(0.0, 16.0) for number in numbers}
        attempts = max(attempts, _cancel_wave(cluster, store, moments, hit))
        print(f"{numbers.stop} cancelled, in these states: {dict(hit)}", flush=True)
    assert attempts > 1, "some runs were hit after a requeue"


def _cancel_wave(cluster: Cluster, store: Path, moments: dict[int, float], hit: Counter[str]) -> int:
    """Runs that are cancelled at their moments and looked at until nothing can come any more; the most attempts."""

    def one(number: int) -> tuple[LiveRun, float]:
        command = ["bash", "-c", CRASHES]
        run = submit(cluster, store, command, name=f"c{number}", nodes=1, retry=RETRY, companion=number % 2 == 0)
        time.sleep(moments[number])
        before = cluster.job(run.job_id)
        hit[before.state if before else "gone"] += 1
        by = cluster.as_root if number % 4 == 3 else cluster.as_user
        by("scancel", str(run.job_id))
        return run, moments[number]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        cancelled = list(pool.map(one, moments))
    ids = {run.job_id for run, _ in cancelled}

    def still_alive() -> list[tuple[int, str]]:
        return [(j.job_id, j.state) for j in cluster.jobs() if j.job_id in ids and j.state != "CANCELLED"]

    wait_until(lambda: not still_alive(), 180, "every cancelled job has ended")
    cancelled[0][0].watch_once()
    time.sleep(SETTLE_S)
    cancelled[0][0].watch_once()
    revived = [(f"{at:.2f} s", run.job_id, run.log()[-1500:]) for run, at in cancelled if _is_alive(cluster, run)]
    assert not revived, f"{len(revived)} of {len(cancelled)} were revived; the first: {revived[0]}"
    new = [job for job in cluster.jobs() if job.job_id > max(ids) and job.user == cluster.user]
    assert not new, f"jobs that nobody submitted: {new}"
    leftovers = [p.argv for run, _ in cancelled for p in cluster.processes(run.job_id)]
    assert not leftovers, leftovers[:3]
    return max(len(list(run.path.glob("attempts/[0-9]*"))) for run, _ in cancelled)


def _is_alive(cluster: Cluster, run: LiveRun) -> bool:
    """Whether Slurm has the job in any state but CANCELLED; once it is purged the last row of accounting tells."""
    job = cluster.job(run.job_id)
    if job is not None:
        return job.state != "CANCELLED"
    last = cluster.states_of(run.job_id)[-1].split()[0]
    return last not in {"CANCELLED", "REQUEUED"}  # cancelled while a requeue completed: the REQUEUED row is the last
