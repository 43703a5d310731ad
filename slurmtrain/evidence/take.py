"""Taking one node's scene: all collectors within one time budget, the manifest written as each of them is done."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.evidence.child import Child
from slurmtrain.evidence.collector import AFTER, BATCH_HOST, NODE, WATCHER, Collector
from slurmtrain.evidence.folder import tidy
from slurmtrain.evidence.manifest import (
    FAILED,
    OUTSIDE,
    SKIPPED,
    TAKEN,
    TIMED_OUT,
    NodeScene,
    Taking,
    scene_dir,
    write_manifest,
)
from slurmtrain.evidence.mask_files import mask_folder
from slurmtrain.evidence.scene import Scene
from slurmtrain.evidence.secrets import Masker

AT_ONCE = 4  # collectors that do not ask the GPU driver
_TICK_S = 0.05
_MAX_SCENES = 9  # of one node and one launch
# The driver may not answer for minutes after these, and asking it may make things worse.
DRIVER_GONE = frozenset({"gpu_lost", "gpu_driver_fault"})


@dataclass(frozen=True, slots=True)
class Plan:
    """Which collectors run and which are left out, and why."""

    chosen: tuple[Collector, ...]
    skipped: tuple[Taking, ...]


def plan_scene(collectors: Sequence[Collector], scene: Scene, disabled: Collection[str] = ()) -> Plan:
    """In the order of their names, those that ask the GPU driver last."""
    place = {WATCHER} if scene.ending == AFTER else {NODE, *({BATCH_HOST} if scene.batch_host else ())}
    here = [c for c in collectors if place & set(c.where) and scene.ending in c.endings and c.name not in disabled]
    gone = scene.cause in DRIVER_GONE
    skipped = [Taking(c.name, SKIPPED, f"not asked after {scene.cause}") for c in here if c.driver and gone]
    chosen = [c for c in here if not (c.driver and gone)]
    return Plan(tuple(sorted(chosen, key=lambda c: c.driver)), tuple(skipped))


def take_scene(
    collectors: Sequence[Collector], scene: Scene, budget_s: float, disabled: Collection[str] = ()
) -> NodeScene:
    """Take it; ``scene.out`` is not used. Raises ``StoreError`` where nothing can be written.

    It never follows what others may have put there: the node's folder is made new, and only its owner may enter it.
    """
    folder = make_folder(scene)
    taker = _Taker(plan_scene(collectors, scene, disabled), scene, folder, budget_s)
    return taker.run()


def make_folder(scene: Scene) -> Path:
    """``scene/<node>``, or the next free ``<node>+2`` …; 0700. Raises ``StoreError``."""
    parent = scene_dir(scene.launch_dir)
    name = OUTSIDE if scene.ending == AFTER else scene.node.replace("/", "_").replace("+", "_") or "node"
    try:
        scene.launch_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            parent.mkdir(mode=0o700)
        for number in range(1, _MAX_SCENES + 1):
            folder = parent / (name if number == 1 else f"{name}+{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
                return folder
    except OSError as exc:
        raise StoreError(f"cannot keep the scene in {parent}: {exc.strerror or exc}") from exc
    raise StoreError(f"{parent} holds {_MAX_SCENES} scenes of {name} already")


class _Taker:
    def __init__(self, plan: Plan, scene: Scene, folder: Path, budget_s: float) -> None:
        self._scene = scene
        self._folder = folder
        self._budget_s = budget_s
        self._begun = time.monotonic()
        self._at = time.time()
        self._waiting = deque(plan.chosen)
        self._order = {c.name: number for number, c in enumerate(plan.chosen)}
        self._running: list[Child] = []
        self._takings = list(plan.skipped)
        self._masker = Masker(scene.environ)
        self._silent_driver = ""  # the collector that the driver did not answer

    def run(self) -> NodeScene:
        self._write(complete=False)
        while self._waiting or self._running:
            self._start_more()
            over = [child for child in self._running if child.poll()]
            for child in over:
                self._running.remove(child)
                self._takings.append(self._end(child))
            if over:
                self._write(complete=False)
            else:
                time.sleep(_TICK_S)
        return self._write(complete=True)

    def _start_more(self) -> None:
        while self._waiting and self._may_start(self._waiting[0]):
            collector = self._waiting.popleft()
            deadline = self._begun + self._budget_s
            if time.monotonic() >= deadline:
                self._skip(collector, f"the {self._budget_s:g} s for the scene were over")
            elif collector.driver and self._silent_driver:
                self._skip(collector, f"the driver had not answered {self._silent_driver}")
            else:
                scene = dataclasses.replace(self._scene, out=self._folder / collector.name)
                try:
                    self._running.append(Child(collector, scene, deadline))
                except OSError as exc:
                    self._takings.append(Taking(collector.name, FAILED, exc.strerror or str(exc)))

    def _may_start(self, collector: Collector) -> bool:
        return not self._running if collector.driver else len(self._running) < AT_ONCE

    def _skip(self, collector: Collector, why: str) -> None:
        self._takings.append(Taking(collector.name, SKIPPED, why))

    def _end(self, child: Child) -> Taking:
        collector = child.collector
        seconds = round(time.monotonic() - child.started, 2)
        mask_folder(child.out, self._masker)
        left = tidy(child.out, collector.size_limit)
        truncated = left.truncated or child.too_big or left.size >= collector.size_limit
        status, why = (TAKEN, "") if truncated and not child.timed_out else _judge(child)
        if status == TIMED_OUT and collector.driver:
            self._silent_driver = collector.name
        notes = [self._masker.text(note) for note in child.notes()]
        if child.stuck:
            notes.append("a process of it waits in the kernel and could not be ended")
        child.close()
        why = self._masker.text(why)
        return Taking(
            collector.name, status, why, seconds, left.size, left.count, left.files, truncated, tuple(notes)
        )  # fmt: skip

    def _write(self, *, complete: bool) -> NodeScene:
        ordered = sorted(self._takings, key=lambda taking: self._order.get(taking.name, len(self._order)))
        scene = NodeScene(
            folder=self._folder,
            node=self._scene.node,
            ending=self._scene.ending,
            cause=self._scene.cause,
            at=round(self._at, 3),
            seconds=round(time.monotonic() - self._begun, 2),
            budget_s=self._budget_s,
            complete=complete,
            takings=tuple(ordered),
        )
        with contextlib.suppress(StoreError):  # a full store: what was taken stays, and later ones fail by themselves
            write_manifest(scene)
        return scene


def _judge(child: Child) -> tuple[str, str]:
    if child.timed_out:
        return TIMED_OUT, child.why_killed
    code = os.waitstatus_to_exitcode(child.status) if child.status is not None else 1
    if code == 0:
        return TAKEN, ""
    return FAILED, child.last_word() or (f"it ended by signal {-code}" if code < 0 else f"it ended with {code}")
