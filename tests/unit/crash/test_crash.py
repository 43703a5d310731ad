"""Agents, gates, watchers and people's commands are killed and stopped at every write and every Slurm command.

Real code on the Slurm in memory, single-stepped (``actors``, ``shim``, ``cluster_world``, ``world``). The long runs::

    python tests/unit/crash/drive.py points            # each point of each scenario in turn: killed, stopped
    python tests/unit/crash/drive.py random 0 5000     # seeds: everything at once, on a store with faults

or ``SLURMTRAIN_CRASH_SEEDS=5000 SLURMTRAIN_CRASH_STRIDE=1 pytest tests/unit/crash``. A seed that fails can be looked at
with ``drive.py random SEED SEED+1 -v``.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from actors import Verdict
from drive import ROLES, VERDICTS, count_points, run_random, run_scenario
from scenarios import SCENARIOS, AtPoint
from world import World, Worlds, install

from slurmtrain.core.decision import Action
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops import recover
from slurmtrain.store import publish, rundir

pytestmark = pytest.mark.one_python  # before 3.11 pathlib keeps functions of os that are replaced here

SEEDS = int(os.environ.get("SLURMTRAIN_CRASH_SEEDS", "48"))
STRIDE = int(os.environ.get("SLURMTRAIN_CRASH_STRIDE", "0"))  # 0: one point of each kind and scenario
ENDS = {
    "hold": "Held", "hold and release": "Held", "permanent": "Failed", "stop": "Stopped", "stop by file": "Stopped",
    "cancelled": "Stopped", "cancelled in the queue": "Stopped", "cancelled by root": "Terminated",
    "cancelled after a preemption": "Stopped", "cancelled after a requeue, no accounting": "Stopped",
}  # fmt: skip


@pytest.fixture
def worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Worlds:
    return Worlds(tmp_path, install(monkeypatch), monkeypatch)


def explain(world: World, problems: list[str]) -> str:
    return "\n".join([*problems, f"seed {world.options.seed}", *world.trace[-60:]])


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_scenario_comes_to_its_end_undisturbed(worlds: Worlds, name: str) -> None:
    world, problems = run_scenario(worlds, name)
    assert problems == [], explain(world, problems)
    assert world.state.state.value == ENDS.get(name, "Completed")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("role", ROLES[:2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_interrupted_at_a_write_or_a_command(worlds: Worlds, name: str, role: str) -> None:
    for verdict in VERDICTS:
        total = count_points(worlds, name, role, verdict.kind)
        if total == 0:
            continue  # it asks Slurm for no change
        first = 1 if STRIDE else 1 + sum(map(ord, name + role + verdict.kind)) % total
        for number in range(first, total + 1, STRIDE or total):
            policy = AtPoint(role, number, verdict)
            world, problems = run_scenario(worlds, name, policy)
            assert problems == [], f"{verdict} at {policy.where}\n{explain(world, problems)}"
            worlds.discard(world)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(4))
def test_interrupted_at_random_on_a_faulty_store(worlds: Worlds, part: int) -> None:
    for seed in range(part, SEEDS, 4):
        world, problems = run_random(worlds, seed)
        assert problems == [], explain(world, problems)
        worlds.discard(world)


# --- the test can fail: known faults must be found


def found_within(worlds: Worlds, schedules: Iterator[tuple[World, list[str]]]) -> bool:
    for world, problems in schedules:
        worlds.discard(world)
        if problems:
            return True
    return False


def paused_watchers(worlds: Worlds) -> Iterator[tuple[World, list[str]]]:
    for number in range(1, 80):
        yield run_scenario(worlds, "script killed", AtPoint("watcher", number, Verdict("pause", 45.0)))


def test_acting_without_looking_first_is_found(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(care: Any, attempt: Any, decision: Any) -> list[Any]:
        with contextlib.suppress(SlurmtrainError):
            if decision.action is Action.REQUEUE:
                time.sleep(25)  # by now its look is old
                care.slurm.requeue(care.job_id, only_running=False)
        return []

    monkeypatch.setattr(recover, "_carry_out", at_once)
    assert found_within(worlds, (run_scenario(worlds, "script killed", seed=seed) for seed in range(20)))


def test_publishing_without_exclusion_is_found(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    def overwrite(path: Path, data: bytes) -> bool:
        publish.replace(path, data)
        return True

    monkeypatch.setattr(rundir, "publish_once", overwrite)
    assert found_within(worlds, paused_watchers(worlds))
