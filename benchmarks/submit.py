"""What does one submission cost? slurmtrain beside plain sbatch, as CPU time and on the clock.

    docker/mini-slurm up --native && docker/mini-slurm shell -- python3 /path/to/benchmarks/submit.py [--repeats 20]

Run as the user who submits, with `slurmtrain` and Slurm's commands on PATH; it works on any cluster. The jobs are asked
for with a start that lies a week ahead, and are cancelled at the end. The ways take turns, so that a busy machine is
the same for all:

- sbatch: the batch script of a run, handed over as a person would
- submit: `slurmtrain submit`, everything as usual
- submit, empty cache: the same with a cache directory that nobody has used, as after an upgrade
- array of 100: `slurmtrain submit --array 0-99`, divided by its runs
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

TASKS = 100
ARRAY = f"array of {TASKS}"
JOB = "name: benchmark\ncommand: ['true']\nresources: {nodes: 1, time_limit: 5, sbatch_options: [--begin=now+7days]}\n"


@dataclass
class Measured:
    """Seconds of one way, each already divided by its runs."""

    cpu: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)


def timed(argv: list[str], environ: dict[str, str], into: Measured, runs: int = 1) -> str:
    """Run it, all its children counted; what it printed."""
    begun, before = time.monotonic(), cpu_s()
    done = subprocess.run(argv, env=environ, stdout=subprocess.PIPE, text=True, timeout=300, check=True)
    into.clock.append((time.monotonic() - begun) / runs)
    into.cpu.append((cpu_s() - before) / runs)
    return done.stdout


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, repeats: int, jobs: list[str]) -> dict[str, Measured]:
    job_file = folder / "job.yaml"
    job_file.write_text(JOB)
    submit = ["slurmtrain", "submit", str(job_file), "--json", "--store", str(folder / "store")]
    environ = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
    ways = {name: Measured() for name in ("sbatch", "submit", "submit, empty cache", ARRAY)}
    first = json.loads(timed(submit, environ, Measured()))  # fills the cache, and the file system's
    jobs.append(first["job_id"])
    script = Path(first["run_dir"]) / "job.sbatch"
    for number in range(repeats):
        plain = ["sbatch", "--parsable", "--begin=now+7days", str(script), "0"]
        jobs.append(timed(plain, environ, ways["sbatch"]).split(";")[0].strip())
        jobs.append(json.loads(timed(submit, environ, ways["submit"]))["job_id"])
        empty = {**environ, "XDG_CACHE_HOME": str(folder / f"cache-{number}")}
        jobs.append(json.loads(timed(submit, empty, ways["submit, empty cache"]))["job_id"])
    for _ in range(max(1, repeats // 5)):
        array = [*submit, "--array", f"0-{TASKS - 1}"]
        jobs.append(json.loads(timed(array, environ, ways[ARRAY], TASKS))["job_id"])
    return ways


def print_table(ways: dict[str, Measured]) -> None:
    plain = statistics.median(ways["sbatch"].cpu)
    print(f"{'way':<22}{'CPU: median':>12}{'from':>7}{'to':>8}{'clock':>10}{'n':>4}  CPU, sbatch = 1")
    for name, found in ways.items():
        middle = statistics.median(found.cpu)
        numbers = f"{middle * 1000:>9.1f} ms{min(found.cpu) * 1000:>7.1f}{max(found.cpu) * 1000:>8.1f}"
        numbers += f"{statistics.median(found.clock) * 1000:>7.0f} ms{len(found.cpu):>4}"
        print(f"{name:<22}{numbers}  {middle / plain:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="slurmtrain-benchmark-", dir=Path.home()))
    jobs: list[str] = []
    try:
        print_table(measure(folder, arguments.repeats, jobs))
    finally:
        if jobs:
            subprocess.run(["scancel", *jobs], timeout=300, check=False)
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
