"""Leaving nodes that drain, and nodes whose maintenance comes: against the Slurm in memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_support import Scene

from slurmtrain.agent import nodes as module
from slurmtrain.agent import stops
from slurmtrain.agent.nodes import NodeWatch, describe_leaving, find_maintenance
from slurmtrain.agent.stops import StopWatch
from slurmtrain.core.spec import Resources, Spec, Stop
from slurmtrain.slurm.client import NodeRecord, ReservationRecord
from slurmtrain.testing import FaultKind


class Clock:
    """Stands in for ``time`` in the module; the test moves it."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now


class Watched:
    """A scene whose agent looks at the nodes at once when a look is due."""

    def __init__(self, scene: Scene, clock: Clock, can_continue: Callable[[], bool] = lambda: True) -> None:
        self.noticed: list[tuple[str, str, bool]] = []
        self.scene, self.clock = scene, clock

        def notice(what: str, detail: str, *, followed: bool) -> None:
            self.noticed.append((what, detail, followed))

        self.watch = NodeWatch(scene.job, scene.slurm, notice, can_continue, run_look=lambda look: look())

    def pass_time(self, seconds: float, end: float | None = None) -> module.Move | None:
        """The agent's loop for so long; the first reason to move."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += 2
            if (move := self.watch.check(end)) is not None:
                return move
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(time=made.time, monotonic=made.monotonic))
    return made


def scene_of(root: Path, **stop: object) -> Scene:
    return Scene(root, Spec(command=("x",), stop=Stop(**stop)))  # type: ignore[arg-type]


def reservation(
    start: float, nodes: str = "n1", flags: str = "MAINT,IGNORE_JOBS", name: str = "maint"
) -> ReservationRecord:
    begin = datetime.fromtimestamp(start, timezone.utc)
    return ReservationRecord(name, frozenset(flags.split(",")), nodes, begin, begin + timedelta(hours=4))


def test_a_draining_node_is_left_after_a_second_look(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    assert watched.pass_time(600) is None
    watched.scene.slurm.drain_node("n1", "NHC: gpu 3")
    move = watched.pass_time(300)
    assert move is not None
    assert (move.reason, move.detail) == ("drain", "n1 drains (NHC: gpu 3)")
    assert watched.noticed == [("drain", "n1 drains (NHC: gpu 3)", True)]


def test_a_node_that_is_resumed_at_once_is_kept(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    watched.scene.slurm.drain_node("n1")
    while not watched.scene.calls("nodes"):
        assert watched.pass_time(2) is None
    watched.scene.slurm.restore_node("n1")
    assert watched.pass_time(1000) is None


def test_other_peoples_nodes_may_drain(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    watched.scene.slurm.drain_node("n2")
    assert watched.pass_time(1000) is None


def test_without_anything_to_continue_from_the_training_stays_and_says_so_once(tmp_path: Path, clock: Clock) -> None:
    has_checkpoint = False
    watched = Watched(scene_of(tmp_path), clock, lambda: has_checkpoint)
    watched.scene.slurm.drain_node("n1")
    assert watched.pass_time(1000) is None
    ((what, detail, followed),) = watched.noticed
    assert (what, followed) == ("drain", False)
    assert "lose everything" in detail
    has_checkpoint = True
    move = watched.pass_time(300)
    assert move is not None, "a checkpoint has come since"
    assert "lose" not in move.detail


def test_the_controller_budget(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    watched.pass_time(36_000)
    asked = {name: len(watched.scene.calls(name)) for name in ("nodes", "reservations")}
    assert 270 <= asked["nodes"] <= 330, "one in two minutes"
    assert 54 <= asked["reservations"] <= 66, "one in ten minutes"


@pytest.mark.parametrize("stop", [{"node_look_s": 0}, {"on_drain": "ignore", "on_maintenance": "ignore"}])
def test_switched_off_it_asks_nothing(tmp_path: Path, clock: Clock, stop: dict[str, object]) -> None:
    watched = Watched(scene_of(tmp_path, **stop), clock)
    watched.scene.slurm.drain_node("n1")
    assert watched.pass_time(3600) is None
    assert watched.scene.calls("nodes", "reservations") == []


def test_a_silent_slurm_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    watched.scene.slurm.inject(FaultKind.UNAVAILABLE, times=20)
    assert watched.pass_time(2000) is None
    watched.scene.slurm.drain_node("n1")
    assert watched.pass_time(2000) is not None


def test_a_maintenance_is_left_before_it_begins(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path, maintenance_lead_s=120), clock)
    start = clock.now + 3600
    watched.scene.slurm.reserved.append(reservation(start))
    assert watched.pass_time(3600 - 150, end=start + 9999) is None
    move = watched.pass_time(60, end=start + 9999)
    assert move is not None
    assert (move.reason, move.at) == ("maintenance", start)
    assert start - 120 <= clock.now <= start - 110


def test_a_maintenance_that_was_put_off_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path, maintenance_lead_s=120, node_look_s=1000), clock)
    start = clock.now + 3600
    watched.scene.slurm.reserved.append(reservation(start))
    assert watched.pass_time(3600 - 150) is None
    watched.scene.slurm.reserved[:] = [reservation(start + 7200)]
    assert watched.pass_time(3600) is None, "asked again right before leaving"


def test_a_job_that_ends_before_the_maintenance_stays(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(scene_of(tmp_path), clock)
    start = clock.now + 1800
    watched.scene.slurm.reserved.append(reservation(start))
    assert watched.pass_time(1790, end=start - 1) is None


def test_which_reservations_are_a_maintenance_of_ours() -> None:
    begun = 1_000_000.0
    coming = [
        reservation(begun + 500, nodes="n[3-9]"),
        reservation(begun + 400, flags="SPEC_NODES"),
        reservation(begun - 10, nodes="n[1-2]", name="under way when the job started"),
        reservation(begun + 300, name="mine"),
        reservation(begun + 900, nodes="n[2-9]", name="the one"),
    ]
    move = find_maintenance(coming, {"n1", "n2"}, begun, ["mine"])
    assert move is not None
    assert move.at == begun + 900
    assert "the one of n2 begins" in move.detail
    assert find_maintenance(coming[:4], {"n1", "n2"}, begun, ["mine"]) is None


def test_what_counts_as_draining() -> None:
    def node(name: str, *states: str, reason: str = "") -> NodeRecord:
        return NodeRecord(name, frozenset(states), reason)

    assert describe_leaving([node("n1", "ALLOCATED"), node("n2", "MIXED", "REBOOT_REQUESTED")]) == ""
    assert (
        describe_leaving([node("n1", "ALLOCATED", "DRAIN", "REBOOT_REQUESTED")]) == "n1 drains (a reboot was asked for)"
    )
    bad = [node(f"n{i}", "MIXED", "DRAIN", reason="disk") for i in (1, 2, 3)]
    assert describe_leaving([*bad, node("x1", "FAILING", reason="hw")]) == "n[1-3] drain (disk); x1 drains (hw)"


def test_the_stop_names_node_and_reason_and_keeps_to_the_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "look", lambda *_: None)  # the memory's clock is not ours
    scene = Scene(tmp_path, Spec(command=("x",), resources=Resources(), stop=Stop(grace_s=7)))
    move = module.Move("drain", "n1 drains (NHC)")
    nodes = SimpleNamespace(check=lambda _end: move)
    found = StopWatch(scene.job, scene.slurm, nodes).check()  # type: ignore[arg-type]
    assert found is not None
    assert (found.reason, found.detail, found.grace_s) == ("drain", "n1 drains (NHC)", 7.0)
    start = time.time() + 90
    nodes.check = lambda _end: module.Move("maintenance", "soon", start)
    found = StopWatch(scene.job, scene.slurm, nodes).check()  # type: ignore[arg-type]
    assert found is not None
    assert found.deadline is not None
    assert found.deadline + found.grace_s < start
