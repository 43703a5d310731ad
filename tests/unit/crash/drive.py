"""Run one schedule or many; as a script, a long run: ``drive.py random 0 5000``, ``drive.py points``,
or ``drive.py points 50 requeue hold``: each 50th point of these scenarios."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from actors import Verdict
from invariants import check
from scenarios import SCENARIOS, AtPoint, arrange, random_options, random_store
from world import World, Worlds, install

ROLES = ("agent", "watcher", "user")
VERDICTS = (Verdict("kill"), Verdict("pause", 45.0), Verdict("pause", 400.0), Verdict("lose"))


def run_scenario(worlds: Worlds, name: str, policy: AtPoint | None = None, seed: int = 0) -> tuple[World, list[str]]:
    options = dataclasses.replace(SCENARIOS[name](), seed=seed)
    world = worlds.make(options)
    if policy is not None:
        world.stage.policy = policy
        if policy.verdict.kind == "pause" and policy.role == "agent":
            world.ghost_allowance = policy.verdict.seconds
    world.go(options.chaos_s)
    world.settle()
    return world, check(world)


def count_points(worlds: Worlds, name: str, role: str, kind: str = "kill") -> int:
    """How many points there are for this role and this kind of verdict where nothing is interrupted."""
    counter = AtPoint(role, -1, Verdict(kind))
    world, problems = run_scenario(worlds, name, counter)
    worlds.discard(world)
    assert problems == [], (name, problems)
    return counter.seen


def run_random(worlds: Worlds, seed: int) -> tuple[World, list[str]]:
    options = random_options(seed)
    world = worlds.make(options)
    arrange(world, seed, random_store(seed))
    world.go(options.chaos_s)
    world.settle()
    return world, check(world)


def main(arguments: list[str]) -> int:
    failed: Counter[str] = Counter()
    count, began = 0, time.perf_counter()
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=shm) as folder:
        worlds = Worlds(Path(folder), install(patch), patch)
        if arguments[0] == "random":
            seeds = range(int(arguments[1]), int(arguments[2]))
            jobs: Iterator[tuple[str, Job]] = (
                (f"seed {seed}", functools.partial(run_random, worlds, seed)) for seed in seeds
            )
        else:
            stride = next((int(word) for word in arguments[1:] if word.isdigit()), 1)
            names = [word for word in arguments[1:] if not word.isdigit()] or list(SCENARIOS)
            jobs = all_points(worlds, names, stride)
        for label, job in jobs:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                world, problems = job()
            count += 1
            if problems:
                failed[problems[0][:60]] += 1
                print(f"--- {label}: {problems}", flush=True)
                if "-v" in sys.argv:
                    print("\n".join(world.trace), said.getvalue(), sep="\n")
            worlds.discard(world)
            if count % 100 == 0:
                print(f"{count} schedules, the last {label}, {sum(failed.values())} failed", flush=True)
    print(f"{count} schedules in {time.perf_counter() - began:.0f} s, {sum(failed.values())} failed")
    for problem, times in failed.most_common():
        print(f"{times:5} {problem}")
    return 1 if failed else 0


Job = Callable[[], tuple[World, list[str]]]


def all_points(worlds: Worlds, names: list[str], stride: int = 1) -> Iterator[tuple[str, Job]]:
    for name in names:
        for role in ROLES:
            with contextlib.redirect_stdout(io.StringIO()):
                totals = {kind: count_points(worlds, name, role, kind) for kind in ("kill", "lose")}
            for verdict in VERDICTS:
                total = totals["lose" if verdict.kind == "lose" else "kill"]
                first = 1 + len(name + role + verdict.kind) % stride  # not the same few points everywhere
                for number in range(min(first, max(total, 1)), total + 1, stride):
                    policy = AtPoint(role, number, verdict)
                    label = f"{name}: {role} point {number} of {total} {verdict}"
                    yield label, lambda name=name, policy=policy: run_scenario(worlds, name, policy)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # a seed means the same each time
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    sys.exit(main([word for word in sys.argv[1:] if word != "-v"]))
