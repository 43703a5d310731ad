"""How long from the kill of a rank to the first line of the next launch? slurmtrain beside plain Slurm and submitit.

    docker/mini-slurm up --native --timers default --nodes 8 && eval "$(docker/mini-slurm env)"
    python benchmarks/recovery.py [--repeats 3] [--submitit PYTHON]

Run as root, on a cluster at rest whose timers are Slurm's own; jobs are submitted as the ordinary user. All measure in
one run: a training of two nodes, one rank killed by SIGKILL, and the time at which rank 0 of the next start prints.

- in place: slurmtrain restarts inside the allocation
- requeue: slurmtrain with restarts in place switched off
- scontrol requeue: a batch script that calls it when srun fails, and nothing else
- submitit: `Checkpointable` with its defaults (`slurm_max_num_timeout` 3). It requeues on its signal (USR2: preemption,
  time limit), never for a rank that died, so it is measured from that signal. `--submitit` names a Python that the
  ordinary user can execute and that has submitit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "live")]

from cluster import Cluster, wait_until
from programs.place import read_records
from runs import LiveRun, submit, trainer

FIRST_S, NEXT_S = 120.0, 400.0
STEPS = ("--steps", "100000", "--pace", "0.1", "--checkpoint-every", "5", "--print-every", "50")
PLAIN = """#!/bin/bash
srun --kill-on-bad-exit=1 {command} || scontrol requeue $SLURM_JOB_ID
"""
SUBMITIT = """
import json, os, sys, time
import submitit

class Training(submitit.helpers.Checkpointable):
    def __call__(self, record):
        if os.environ["SLURM_PROCID"] == "0":
            with open(record, "a") as stream:
                stream.write(json.dumps({"event": "start", "rank": 0, "at": time.time()}) + "\\n")
        time.sleep(100000)

executor = submitit.AutoExecutor(folder=sys.argv[1])
executor.update_parameters(
    nodes=2, tasks_per_node=1, timeout_min=30, slurm_partition=sys.argv[2], slurm_setup=["export SBATCH_REQUEUE=1"],
    slurm_additional_parameters={"requeue": True, "mem": "200M"},
)
print(executor.submit(Training(), sys.argv[3]).job_id)
"""


def starts(workdir: Path) -> list[float]:
    """When rank 0 began, each time; written by the training itself."""
    return [row["at"] for row in read_records(workdir, "start") if row["rank"] == 0]


def wait_for_start(workdir: Path, number: int, timeout_s: float) -> float:
    wait_until(lambda: len(starts(workdir)) >= number, timeout_s, f"start {number} in {workdir}")
    return starts(workdir)[number - 1]


def kill_rank(cluster: Cluster, job_id: int, own: bool) -> float:
    """SIGKILL of rank 1's own process; when."""

    def find() -> list[int]:
        return [
            p.pid
            for p in cluster.processes(job_id)
            if p.environ.get("SLURM_PROCID") == "1"
            and any("trainer.py" in word for word in p.argv)
            and ("SLURMTRAIN_LAUNCH_KEY" in p.environ or not own)
            and p.argv[0].endswith("python3")
        ]

    (pid,) = wait_until(find, 30, "rank 1 runs")
    os.kill(pid, signal.SIGKILL)
    return time.time()


def measure_slurmtrain(cluster: Cluster, store: Path, name: str, retry: dict[str, int], repeats: int) -> list[float]:
    """One run; its rank is killed again and again, each time after it has got further."""
    run = submit(cluster, store, trainer(store, *STEPS), name=name, nodes=2, retry=retry, time_limit="60")
    try:
        return [_kill_and_wait(cluster, run, number) for number in range(1, repeats + 1)]
    finally:
        cluster.slurm("scancel", str(run.job_id), check=False)


def _kill_and_wait(cluster: Cluster, run: LiveRun, number: int) -> float:
    wait_for_start(run.workdir, number, FIRST_S)
    known = run.newest_step() if list(run.checkpoints.glob("step-*.json")) else 0
    run.wait_step(known + 5)
    killed = kill_rank(cluster, run.job_id, own=True)
    return wait_for_start(run.workdir, number + 1, NEXT_S) - killed


def measure_plain(cluster: Cluster, store: Path) -> list[float]:
    workdir = make_folder(cluster, store, "plain")
    command = " ".join(trainer(store, *STEPS, "--checkpoints", str(workdir / "checkpoints")))
    options = ["-N2", "--ntasks-per-node=1", "--requeue", "--open-mode=append", "-t", "30", "--mem=200M"]
    job_id = cluster.sbatch(*options, script=PLAIN.format(command=command), cwd=workdir)
    try:
        wait_for_start(workdir, 1, FIRST_S)
        time.sleep(2)
        killed = kill_rank(cluster, job_id, own=False)
        return [wait_for_start(workdir, 2, NEXT_S) - killed]
    finally:
        cluster.slurm("scancel", str(job_id), check=False)


def measure_submitit(cluster: Cluster, store: Path, python: str) -> list[float]:
    workdir = make_folder(cluster, store, "submitit")
    program = workdir / "submit.py"
    program.write_text(SUBMITIT)
    done = cluster.as_user(
        python, str(program), str(workdir / "logs"), cluster.partition(), str(workdir / "record.jsonl"), cwd=workdir
    )
    if done.returncode != 0:
        raise RuntimeError(f"submitit: {done.stderr.strip()[-500:]}")
    job_id = int(done.stdout.split()[-1])
    try:
        wait_for_start(workdir, 1, FIRST_S)
        time.sleep(3)
        cluster.slurm("scancel", "--signal", "USR2", str(job_id))
        killed = time.time()
        return [wait_for_start(workdir, 2, NEXT_S) - killed]
    finally:
        cluster.slurm("scancel", str(job_id), check=False)


def make_folder(cluster: Cluster, store: Path, name: str) -> Path:
    folder = store / name
    folder.mkdir(mode=0o755)
    give(cluster, folder)
    return folder


def give(cluster: Cluster, folder: Path) -> None:
    os.chown(folder, int(cluster.facts["user"]["uid"]), int(cluster.facts["user"]["gid"]))


def measure_all(cluster: Cluster, store: Path, repeats: int, submitit: str | None) -> dict[str, list[float]]:
    """The slow ones wait while the fast ones are measured one after the other."""
    found: dict[str, list[float]] = {}
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(measure_plain, cluster, store)
        other = pool.submit(measure_submitit, cluster, store, submitit) if submitit else None
        time.sleep(20)  # they have begun and been killed by then
        in_place = {"in_place": 1000, "delay_s": 0}
        requeue = {"in_place": 0, "requeues": 1000, "delay_s": 0}
        found["in place"] = measure_slurmtrain(cluster, store, "inplace", in_place, repeats)
        found["requeue"] = measure_slurmtrain(cluster, store, "requeue", requeue, repeats)
        found["scontrol requeue"] = plain.result()
        if other is not None:
            found["submitit"] = other.result()
    return found


def print_table(found: dict[str, list[float]]) -> None:
    plain = statistics.median(found["scontrol requeue"])
    print(f"{'way':<18}{'median':>9}{'min':>9}{'max':>9}{'n':>4}  times faster than scontrol requeue alone")
    for way, seconds in found.items():
        middle = statistics.median(seconds)
        times = f"{middle:>7.1f} s{min(seconds):>7.1f} s{max(seconds):>7.1f} s"
        print(f"{way:<18}{times}{len(seconds):>4}  {plain / middle:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--submitit", metavar="PYTHON", help="a Python that has submitit")
    parser.add_argument("--json", action="store_true", help="print the seconds instead of the table")
    arguments = parser.parse_args()
    cluster = Cluster.from_env()
    values = cluster.timer_values
    print(f"Slurm {cluster.facts['slurm_version']}, timers {cluster.timers}: {values}", file=sys.stderr)
    if cluster.timers != "default":
        print("these are not Slurm's own timers: the comparison means nothing", file=sys.stderr)
    store = Path(tempfile.mkdtemp(prefix="benchmark-", dir=cluster.store))
    store.chmod(0o755)
    give(cluster, store)
    found = measure_all(cluster, store, arguments.repeats, arguments.submitit)
    if arguments.json:
        print(json.dumps({way: [round(value, 2) for value in seconds] for way, seconds in found.items()}))
    else:
        print_table(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
