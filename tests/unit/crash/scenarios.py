"""What can happen to a run, one scenario each, and schedules of many things made from a seed."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

from actors import POINTS, Actor, Verdict
from cluster_world import Outcome, Training
from invariants import trainings
from shim import StoreFaults
from world import Options, SlurmFaults, SlurmOf, World

from slurmtrain.core.decision import RunState
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.release import release_run
from slurmtrain.ops.status import Sight, see_jobs
from slurmtrain.ops.stop import Wish, stop_run
from slurmtrain.ops.timeline import read_view

SEGFAULT = (139, "0: step\nsrun: error: n1: task 0: Segmentation fault\n")
IMPORT_ERROR = (1, "0: Traceback (most recent call last):\n0: ModuleNotFoundError: No module named 'x'\n")
XID = (
    1,
    "0: RuntimeError: CUDA error: unspecified launch failure\n"
    "0: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    "srun: error: n1: task 0: Exited with exit code 1\n",
)
Plan = Callable[[World, Training], Outcome | None]
Event = Callable[[World], None]


# --- what the training does


def crash_once_at(*steps: int, how: Outcome = SEGFAULT) -> Plan:
    """At each of these steps the first launch that comes to it fails."""

    def plan(world: World, training: Training) -> Outcome | None:
        before = [t for t in trainings(world) if t is not training and t.step >= training.step]
        return how if training.step in steps and not before else None

    return plan


def crash_always(after: int = 2, how: Outcome = SEGFAULT) -> Plan:
    """Each launch fails so many steps after it began: without a checkpoint, when that is early."""
    return lambda _world, training: how if training.step >= training.began_at_step + after else None


# --- what people and Slurm do


def cancel(world: World) -> None:
    _note_end(world)
    world.cancel_all()


def cancel_as_root(world: World) -> None:
    _note_end(world)
    world.cancel_all(0)


def _note_end(world: World) -> None:
    """A run that had its end already, on the disk or decided, keeps it."""
    ends = {RunState.COMPLETED, RunState.FAILED}
    for attempt in world.run.read_attempts():
        decision = attempt.read_decision() or {}
        if decision.get("state") in {state.value for state in ends | {RunState.HELD}}:
            world.ended_before_cancel.add(RunState(decision["state"]))
    if any(t.exit_code == 0 and not t.asked for t in trainings(world)):
        world.ended_before_cancel.add(RunState.COMPLETED)


def touch_stop(world: World) -> None:
    world.stop_asked_at = world.now()
    world.run.stop_file.touch()


def stop(world: World) -> None:
    world.stop_asked_at = world.now()

    def body(actor: Actor) -> None:
        client: Any = SlurmOf(world, actor)
        view = read_view(world.run)
        sights, problem = see_jobs([view], client)
        try:
            stop_run(view, sights.get("run-1", Sight(None, asked=not problem)), client, Wish("u"))
        except SlurmtrainError as exc:
            world.note(actor, "stop", str(exc))

    world.spawn_user("stop", body)


def release(world: World) -> None:
    def body(actor: Actor) -> None:
        client: Any = SlurmOf(world, actor)
        try:
            if read_view(world.run).state.state is RunState.HELD:
                world.released = True
                release_run(world.run, client, "u")
        except SlurmtrainError as exc:
            world.note(actor, "release", str(exc))

    world.spawn_user("release", body)


def lose_node(world: World) -> None:
    """The node of the running execution: its processes live on, unreachable."""
    for execution in world.cluster.executions:
        if not execution.over:
            world.cut_off.add(execution.name)
            world.cluster.lose_node(execution.node)
            return


def return_nodes(world: World) -> None:
    for node in list(world.slurm.controller.nodes):
        world.cluster.return_node(node)


def requeue_by_hand(world: World) -> None:
    for job in list(world.slurm.controller.jobs.values()):
        if job.request.arguments and job.running:
            world.slurm.controller.requeue(job, only_running=True)


def preempt(world: World) -> None:
    """A job of higher priority takes all nodes for a while."""
    script = world.root / "urgent.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N4 -p urgent --exclusive -t 10\n")
    urgent = world.slurm.submit(script)
    world._events.append((world.now() - world.epoch + 60, lambda w: w.slurm.cancel_as(urgent, 0)))
    world._events.sort(key=lambda item: item[0])


def kill_script(world: World) -> None:
    for execution in world.cluster.executions:
        if not execution.over and not execution.cut_off:
            world.cluster.kill_script(execution)


def kill_agent(world: World) -> None:
    for actor in world.stage.actors:
        if actor.role == "agent":
            actor.kill()


def kill_watchers(world: World) -> None:
    for actor in world.stage.actors:
        if actor.role == "watcher":
            actor.kill()


SCENARIOS: dict[str, Callable[[], Options]] = {
    "success": Options,
    "submission": lambda: Options(submit=True),
    "restart in place": lambda: Options(plan=crash_once_at(10)),
    "requeue": lambda: Options(plan=crash_once_at(10), in_place=0),
    "requeue elsewhere": lambda: Options(plan=crash_once_at(8, how=XID)),
    "hold": lambda: Options(plan=crash_always(), delay_s=5),
    "hold and release": lambda: Options(plan=crash_always(), delay_s=5, events=((120, release),)),
    "permanent": lambda: Options(plan=crash_once_at(5, how=IMPORT_ERROR)),
    "time limit": lambda: Options(goal=150, time_limit="2"),
    "preemption": lambda: Options(events=((12, preempt),)),
    "preemption with grace": lambda: Options(partition="graced", events=((12, preempt),)),
    "preemption with grace, 24.05": lambda: Options(partition="graced", version=(24, 5), events=((12, preempt),)),
    "node lost": lambda: Options(events=((12, lose_node), (40, return_nodes))),
    "script killed": lambda: Options(events=((12, kill_script),)),
    "purged": lambda: Options(min_job_age=10, events=((11, kill_watchers), (12, kill_script))),
    "purged without accounting": lambda: Options(
        min_job_age=10, accounting=False, events=((11, kill_watchers), (12, kill_script))
    ),
    "agent killed": lambda: Options(events=((12, kill_agent),)),
    "stop": lambda: Options(events=((12, stop),)),
    "stop by file": lambda: Options(events=((12, touch_stop),)),
    "cancelled": lambda: Options(events=((12, cancel),)),
    "cancelled by root": lambda: Options(events=((12, cancel_as_root),)),
    "cancelled after a preemption": lambda: Options(min_job_age=10, events=((12, preempt), (14, cancel))),
    "cancelled after a requeue, no accounting": lambda: Options(
        min_job_age=10, accounting=False, events=((12, requeue_by_hand), (14, cancel_as_root))
    ),
    "rescue": lambda: Options(rescue=True, submit=True, events=((12, kill_script), (12, kill_watchers))),
    "array task": lambda: Options(array=True, submit=True, plan=crash_once_at(10), in_place=0),
    "cancelled in the queue": lambda: Options(plan=crash_once_at(8), in_place=0, events=((12.5, cancel),)),
    "requeued by hand": lambda: Options(events=((12, requeue_by_hand),)),
}  # fmt: skip


# --- interrupting


class AtPoint:
    """At the ``number``-th write or Slurm command of those who play this role, the verdict falls, once."""

    def __init__(self, role: str, number: int, verdict: Verdict) -> None:
        self.role, self.number, self.verdict, self.seen = role, number, verdict, 0
        self.where = ""

    def __call__(self, actor: Actor, kind: str, what: str) -> Verdict:
        if actor.role != self.role or kind not in POINTS or (self.verdict.kind == "lose" and kind != "slurm-after"):
            return Verdict()
        self.seen += 1
        if self.seen != self.number:
            return Verdict()
        self.where = f"{actor.name}: {kind} {what}"
        return self.verdict


class AtRandom:
    """Kills, stops and yields, by the seed."""

    def __init__(self, world: World, kill: float, pause: float, switch: float) -> None:
        self.world, self.kill, self.pause, self.switch = world, kill, pause, switch

    def __call__(self, actor: Actor, kind: str, what: str) -> Verdict:
        rng = self.world.rng
        weight = 1.0 if kind in POINTS else 0.1
        draw = rng.random()
        if draw < self.kill * weight:
            self.world.note(actor, "KILL", f"{kind} {what}")
            return Verdict("kill")
        draw -= self.kill * weight
        if draw < self.pause * weight:
            seconds = rng.choice((0.3, 2.0, 8.0, 30.0, 90.0, 400.0))
            if actor.role == "agent":
                self.world.ghost_allowance += seconds
            self.world.note(actor, "STOP", f"{seconds} s at {kind} {what}")
            return Verdict("pause", seconds)
        return Verdict("yield") if draw < self.switch * weight else Verdict()


def random_options(seed: int) -> Options:
    """A schedule: a training, a cluster, people, faults of Slurm."""
    rng = random.Random(f"options {seed}")
    plan = rng.choice(
        [None, crash_once_at(10), crash_once_at(5, 12, 20), crash_once_at(8, how=XID), crash_always(),
         crash_always(7), crash_once_at(5, how=IMPORT_ERROR)]
    )  # fmt: skip
    happenings: list[Event] = [
        cancel, cancel_as_root, touch_stop, stop, release, release, lose_node, requeue_by_hand, preempt, kill_script,
        kill_agent, kill_watchers,
    ]  # fmt: skip
    count = rng.choice((0, 1, 1, 2, 2, 3, 4))
    events = [(rng.uniform(0.5, 150), rng.choice(happenings)) for _ in range(count)]
    events += [(at + rng.uniform(5, 120), return_nodes) for at, act in events if act is lose_node]
    down = rng.uniform(0, 150)
    return Options(
        seed=seed,
        goal=rng.choice((15, 30, 60)),
        plan=plan,
        accounting=rng.random() < 0.8,
        min_job_age=rng.choice((10.0, 40.0, 300.0)),
        cred_expire=rng.choice((5.0, 120.0)),
        watchers=rng.choice((1, 2, 2, 2)),
        leases=rng.random() < 0.3,
        time_limit=rng.choice(("60", "60", "60", "1", "2")),
        partition=rng.choice(("batch", "batch", "graced")),
        in_place=rng.choice((0, 1, 5)),
        delay_s=rng.choice((0, 5, 30)),
        submit=rng.random() < 0.3,
        chaos_s=rng.choice((100, 300)),
        slurm=SlurmFaults(
            lost=rng.choice((0.0, 0.0, 0.1, 0.4)),
            unavailable=rng.choice((0.0, 0.0, 0.05)),
            busy=rng.choice((0.0, 0.0, 0.2)),
            down=((down, down + rng.choice((5, 40, 120))),) if rng.random() < 0.3 else (),
            latency_s=rng.choice((0.05, 0.5, 3.0)),
        ),
        events=tuple(events),
        version=rng.choice(((22, 5), (24, 5), (26, 5))),
        array=rng.random() < 0.15,
        rescue=rng.random() < 0.15,
    )


_REFUSALS = (errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EIO)


def random_store(seed: int) -> StoreFaults:
    """A store that misbehaves in some ways, or in none."""
    rng = random.Random(f"store {seed}")
    if rng.random() < 0.3:
        return StoreFaults()
    start = rng.uniform(0, 150)
    windows = ((start, start + rng.choice((5, 30, 100)), rng.choice(_REFUSALS)),)
    return StoreFaults(
        late_s=rng.choice((0.0, 0.0, 2.0, 5.0, 30.0)),
        no_links=rng.random() < 0.2,
        link_lies=rng.choice((0.0, 0.0, 0.1)),
        mkdir_lies=rng.choice((0.0, 0.0, 0.05)),
        rename_lies=rng.choice((0.0, 0.0, 0.05)),
        stale=rng.choice((0.0, 0.0, 0.02)),
        full=windows if rng.random() < 0.3 else (),
    )


def arrange(world: World, seed: int, store: StoreFaults | None = None) -> None:
    """Let chance have its say in this world."""
    rng = random.Random(f"rates {seed}")
    world.stage.policy = AtRandom(
        world, rng.choice((0.0, 0.005, 0.02, 0.05)), rng.choice((0.0, 0.005, 0.02)), rng.choice((0.02, 0.2))
    )
    if store is not None:
        base = world.epoch
        store.full = tuple((base + start, base + end, code) for start, end, code in store.full)
        world.machine.faults = store
        world.hostile = store != StoreFaults()
