"""A store with one run, a Slurm in memory, agents, watchers and people, under one seed."""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from actors import Actor, Killed, ReplyLost, Stage, Verdict, current
from cluster_world import Cluster, FakeWake, Outcome, Training
from shim import Machine

from slurmtrain.agent import attempt as attempt_module
from slurmtrain.agent import metric_watch, processes
from slurmtrain.agent.nodes import NodeWatch
from slurmtrain.agent.rescue import run_rescue
from slurmtrain.checkpoints import find
from slurmtrain.checkpoints.check import check
from slurmtrain.core import events as ev
from slurmtrain.core.decision import RunState
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState
from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Resources, Retry, Spec, spec_to_dict
from slurmtrain.errors import SlurmBusyError, SlurmtrainError, SlurmUnavailableError
from slurmtrain.ops import judge
from slurmtrain.ops.rescue import arm_rescue
from slurmtrain.ops.submit import Handover, hand_over
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import MemoryConfig, MemorySlurm
from slurmtrain.testing.memory_records import is_over
from slurmtrain.watch.lease import Lease
from slurmtrain.watch.loop import Watcher

UID = 1000
GOAL = 30
CALLS = frozenset(
    {"submit", "observe", "history", "requeue", "update_pending", "excluded_nodes", "hold", "release", "cancel",
     "signal_step", "steps", "nodes", "capabilities", "check_submit", "reservations"}
)  # fmt: skip
CHANGES = frozenset({"submit", "requeue", "update_pending", "cancel", "release", "hold", "signal_step"})
NEVER = 1e12
FRESH_S = 10.0


@dataclass
class SlurmFaults:
    """Probabilities per call; ``down`` are (from, to) windows in which slurmctld does not answer."""

    lost: float = 0.0
    unavailable: float = 0.0
    busy: float = 0.0
    down: tuple[tuple[float, float], ...] = ()
    latency_s: float = 0.1


@dataclass
class Options:
    """What one schedule is made of."""

    seed: int = 0
    goal: int = GOAL
    plan: Callable[[World, Training], Outcome | None] | None = None
    accounting: bool = True
    min_job_age: float = 300.0
    cred_expire: float = 120.0
    watchers: int = 2
    leases: bool = False
    time_limit: str = "60"
    partition: str = "batch"
    in_place: int = 5
    delay_s: int = 30
    submit: bool = False  # by a person's command, as an actor
    chaos_s: float = 300.0
    slurm: SlurmFaults = field(default_factory=SlurmFaults)
    events: tuple[tuple[float, Callable[[World], None]], ...] = ()
    version: tuple[int, int] = (22, 5)
    array: bool = False  # the run is a task of an array
    rescue: bool = False


class SlurmOf:
    """Slurm as one actor reaches it: each command is a point before and after, takes time, and may fail."""

    def __init__(self, world: World, actor: Actor) -> None:
        self._world, self._actor = world, actor
        self._looked = -NEVER

    def expand_nodes(self, expression: str) -> list[str]:
        return self._world.slurm.expand_nodes(expression)

    def __getattr__(self, name: str) -> Any:
        if name not in CALLS:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        world, actor, asked = self._world, self._actor, self._world.now()
        kind = "slurm" if name in CHANGES else "slurm-read"
        actor.point(kind, name)
        actor.block(world.rng.uniform(0, world.slurm_faults.latency_s))
        world.may_fail(name)
        if name == "observe":
            self._looked = world.now()
        if name == "requeue":
            world.judge_requeue(actor, args[0], asked - self._looked)
        try:
            answer = world.answer(name, args, kwargs)
        except Exception as exc:
            world.note(actor, name, f"{args} {kwargs} -> {exc}")
            raise
        world.note(actor, name, f"{args[:2]} {kwargs} -> {answer if name == 'submit' else ''}")
        actor.block(world.rng.uniform(0, world.slurm_faults.latency_s))
        try:
            actor.point(f"{kind}-after", name)
        except ReplyLost as exc:
            raise SlurmUnavailableError(f"cannot {name}: Socket timed out on send/recv operation") from exc
        if name in CHANGES and world.rng.random() < world.slurm_faults.lost:
            raise SlurmUnavailableError(f"cannot {name}: Socket timed out on send/recv operation")
        return answer


class World:
    """Everything of one schedule. ``machine`` is installed by the fixture and begun anew here."""

    def __init__(self, root: Path, machine: Machine, options: Options) -> None:
        self.options = options
        self.rng = random.Random(options.seed)
        random.seed(options.seed)  # jitter in the code under test
        config = MemoryConfig(
            uid=UID, accounting=options.accounting, min_job_age=timedelta(seconds=options.min_job_age),
            kill_wait=timedelta(seconds=8), cred_expire=timedelta(seconds=options.cred_expire),
            tick=timedelta(seconds=10), version=options.version,
        )  # fmt: skip
        self.slurm = MemorySlurm(config=config)
        self.slurm_faults = options.slurm
        self.epoch = self.slurm.clock().timestamp()
        self.stage = Stage(lambda: self.slurm.clock().timestamp(), self.rng)
        self.root, self.machine = root, machine
        machine.reset(str(root), self.rng)
        self.run = RunDir(root / "runs" / "run-1")
        self._make_run(spec := self._spec())
        self.spec = spec
        plan = options.plan or (lambda _world, _training: None)

        def outcome(training: Training) -> Outcome | None:
            found = plan(self, training)
            return found or ((0, "") if training.step >= options.goal else None)

        self.cluster = Cluster(self.stage, self.slurm, self.run.path, outcome, lambda actor: SlurmOf(self, actor))  # type: ignore[arg-type,return-value]
        machine.popen, machine.kill = self.cluster.popen, self.cluster.kill
        self.trace: list[str] = []
        self.calm = False
        self.cancelled_at: float | None = None  # the first cancel that took a job of the run away
        self.cancelled = ("", 0)  # that job, and its restart count
        self.stop_asked_at: float | None = None
        self.decisions: dict[str, bytes] = {}
        self.problems: list[str] = []
        self.cut_off: set[str] = set()  # executions whose node was lost
        self.ghost_allowance = 0.0  # so much longer a ghost may live, because it was stopped by a signal
        self.released = False  # a person let the run go on
        self.ended_before_cancel: set[RunState] = set()
        self.hostile = False  # the store has faults
        self.relaunch_allowed = False
        self._watchers = 0
        self._stirred = False
        self._armed: list[str] = []  # jobs whose bad end starts a rescue job
        self._events = sorted(options.events, key=lambda item: item[0])
        self._next_tick = self.now() + 1.0
        self._begin()

    @property
    def task(self) -> int | None:
        return 3 if self.options.array else None

    # -- set up ------------------------------------------------------------------------------------------------------

    def _spec(self) -> Spec:
        o = self.options
        return Spec(
            command=("true",), name="run", companion=False, rescue=o.rescue,
            resources=Resources(time_limit=o.time_limit, partition=o.partition),
            retry=Retry(in_place=o.in_place, delay_s=o.delay_s),
        )  # fmt: skip

    def _make_run(self, spec: Spec) -> None:
        for folder in (self.run.journal, self.run.attempts, self.run.logs, self.run.submissions):
            folder.mkdir(parents=True)
        (self.run.path / "checkpoints").mkdir()
        plan = {"run_id": "run-1", "spec": spec_to_dict(spec), "uid": UID}
        if self.task is not None:
            plan["array"] = {"task": self.task, "count": 1, "first": self.task, "last": self.task}
        self.run.plan.write_text(json.dumps(plan))
        os.utime(self.run.plan, (self.epoch, self.epoch))
        self.run.rules.write_text(rules_text())
        self.run.batch_script.write_text(
            f"#!/bin/bash\n#SBATCH -N1 -t {spec.resources.time_limit} -p {spec.resources.partition} --requeue"
            f" --signal=B:USR2@20{'' if self.task is None else f' --array={self.task}'}\n"
        )
        self.run.rescue_script.write_text("#!/bin/bash\n#SBATCH -N1 -t 5\n")
        self.run.launch_script.write_text("#!/bin/bash\nexit 0\n")

    def _begin(self) -> None:
        if self.options.submit:
            self.stage.spawn("submit", "user", "login", self._submit)
        else:
            journal = JournalWriter(self.run.journal, "submit-login-1")
            journal.append(ev.RunCreated(at=0, who="user", name="run", user="u", uid=UID, host="login"))
            job = self.run.read_plan().job_of(self.slurm.submit(self.run.batch_script, arguments=["0"]))
            journal.append(ev.Submitted(at=0, who="user", submission=0, job_id=str(job)))
            publish_once(self.run.submission(0), to_json({"job_id": str(job)}))
        for _ in range(self.options.watchers):
            self.start_watcher()

    def _submit(self) -> None:
        """The part of ``slurmtrain submit`` that follows the directory's appearance."""
        actor = current()
        assert actor is not None
        client: Any = SlurmOf(self, actor)
        handover = Handover(self.run.batch_script, [(self.run, self.task)], [self.run.path], "run run-1")
        job_id, _ = hand_over(handover, client, name="run", tell=lambda _text: None, sleep=actor.block)
        arm_rescue(self.run, self.spec, handover.job_of(job_id, self.task), client)

    def start_watcher(self, delay_s: float = 0.0) -> None:
        self._watchers += 1
        number = self._watchers

        def body() -> None:
            actor = current()
            assert actor is not None
            client: Any = SlurmOf(self, actor)
            watcher = Watcher(self.root, client, 20.0, tell=lambda run, what: self.note(actor, "tell", f"{run} {what}"))
            lease = Lease(self.root, 120.0) if self.options.leases else None
            while True:
                watcher.look_once(lease)
                actor.block(self.rng.uniform(20, 60) if self.calm else self.rng.uniform(3, 30))

        self.stage.spawn(f"watcher {number}", "watcher", f"login{number % 2}", body, delay_s)

    # -- what happens ------------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.stage.now()

    def note(self, actor: Actor | None, name: str, text: str) -> None:
        who = actor.name if actor else "-"
        self.trace.append(f"{self.now() - self.epoch:8.1f} {who}: {name} {text}"[:300])

    def may_fail(self, name: str) -> None:
        faults, now = self.slurm_faults, self.now() - self.epoch
        down = any(start <= now < end for start, end in faults.down)
        if down or self.rng.random() < faults.unavailable:
            raise SlurmUnavailableError(f"cannot {name}: Unable to contact slurm controller (connect failure)")
        if name in {"submit"} and self.rng.random() < faults.busy:
            raise SlurmBusyError(f"cannot {name}: Slurm temporarily unable to accept job")

    def answer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Slurm's, or what stands in for it: the Slurm in memory knows no dependencies, which rescue jobs need."""
        if name != "submit" or args[0] != self.run.rescue_script:
            return getattr(self.slurm, name)(*args, **kwargs)
        self._armed.append(kwargs["options"][0].removeprefix("--dependency=afternotok:"))
        return JobId(9000 + len(self._armed))

    def _start_rescues(self) -> None:
        """``afternotok``: a job that ended, and not well, starts the rescue jobs that wait for it."""
        jobs = {str(job.job_id): job for job in self.slurm.controller.jobs.values()}
        for waited_for in list(self._armed):
            job = jobs.get(waited_for)
            if job is not None and not is_over(job):
                continue
            self._armed.remove(waited_for)
            if job is not None and job.base is not BaseState.COMPLETED:
                self.stage.spawn(f"rescue of {waited_for}", "rescue", "n4", self._rescue, self.rng.uniform(0.2, 20))

    def _rescue(self) -> int:
        actor = current()
        assert actor is not None
        client: Any = SlurmOf(self, actor)
        try:
            return run_rescue(self.run, client)
        except SlurmtrainError as exc:
            self.note(actor, "rescue", str(exc))
            return 1

    def judge_requeue(self, actor: Actor, job_id: JobId, age_s: float) -> None:
        """Slurm cannot be asked to requeue on a condition: so whoever does it has looked just before.

        An actor that is stopped in the very moment between remains; there the next gate has to set things right.
        """
        if actor.role == "agent":
            self.cluster.execution_of(actor).asked_for_requeue = True
            return
        for job in self.slurm.controller.find(job_id):
            if age_s > FRESH_S and (job.running or job.base is BaseState.CANCELLED):
                self.problems.append(f"{actor.name} requeued {job_id}, {job.base.value}, {age_s:.0f} s after its look")

    def our_jobs(self) -> list[JobId]:
        return [job.job_id for job in self.slurm.controller.jobs.values() if job.request.arguments]

    def cancel_all(self, uid: int = UID) -> None:
        """A person's scancel of everything that the run has in Slurm; noted where it took something away."""
        for job in list(self.slurm.controller.jobs.values()):
            if not job.request.arguments:
                continue
            before = job.base
            self.slurm.cancel_as(job.job_id, uid)
            if job.base is not before and self.cancelled_at is None:
                self.cancelled_at, self.cancelled = self.now(), (str(job.job_id), job.restart_count)
                self.note(None, "scancel", f"{job.job_id} by {uid} ({before.value})")

    def spawn_user(self, name: str, body: Callable[[Actor], None]) -> None:
        def run() -> None:
            actor = current()
            assert actor is not None
            body(actor)

        self.stage.spawn(name, "user", "login", run)

    # -- running -----------------------------------------------------------------------------------------------------

    def go(self, until: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Let the world go on until so many seconds after its beginning."""
        end = self.epoch + until
        while self.now() < end and not stop():
            actor = self.stage.step()
            if actor is not None:
                self._stirred = True
                self._after(actor)
                continue
            self._let_time_pass(end)

    def _let_time_pass(self, end: float) -> None:
        wakes = [self.stage.next_wake(), self._next_tick, end]
        if self._events:
            wakes.append(self.epoch + self._events[0][0])
        target = max(self.now(), min(w for w in wakes if w is not None))
        self.slurm.advance(max(1e-3, target - self.now()))
        if self.now() >= self._next_tick:
            self._next_tick += 1.0
            self.cluster.tick()
            self._start_rescues()
            if self._stirred:  # nobody else decides or takes a checkpoint away
                self._look_at_files()
            self._stirred = False
        self.cluster.sweep()
        while self._events and self.now() >= self.epoch + self._events[0][0]:
            _, act = self._events.pop(0)
            self.note(None, "event", getattr(act, "__name__", "?"))
            if self.run.path.exists():
                act(self)

    def _after(self, actor: Actor) -> None:
        if not actor.done:
            return
        if actor.error is not None:
            self.note(actor, "raised", repr(actor.error))
            if actor.role != "user" and not isinstance(actor.error, Killed):
                self.problems.append(f"{actor.name} raised {actor.error!r}")
        else:
            self.note(actor, "killed" if actor.doomed else "ended", str(actor.result))
        if actor.role == "agent":
            self.cluster.agent_ended(actor)
        elif actor.role == "watcher":
            self.start_watcher(self.rng.uniform(1, 60))

    def _look_at_files(self) -> None:
        """Decisions never change once they are there; checkpoints never go."""
        for path in self.run.attempts.glob("[0-9]*/decision.json*"):
            content = path if path.is_file() else path / "content"
            try:
                data = content.read_bytes()
            except OSError:
                continue
            before = self.decisions.setdefault(path.parent.name, data)
            if before != data:
                self.problems.append(f"attempt {path.parent.name} was decided twice: {before!r} {data!r}")
        if not self.run.path.exists():
            return
        folder = self.run.path / "checkpoints"
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if gone := self.cluster.saved - names:
            self.problems.append(f"checkpoints are gone: {gone}")

    def settle(self, limit_s: float = 7200.0) -> None:
        """The faults are over: watchers look, and in the end the run is resolved; then nothing stirs any more."""
        self.calm = True
        self.machine.faults.full = ()
        for name in ("link_lies", "mkdir_lies", "rename_lies", "stale"):
            setattr(self.machine.faults, name, 0.0)
        self.slurm_faults = SlurmFaults()
        self.stage.policy = lambda _actor, _kind, _what: Verdict()
        for node in list(self.slurm.controller.nodes):
            self.cluster.return_node(node)
        if not any(actor.role == "watcher" for actor in self.stage.actors):
            self.start_watcher()
        start = self.now() - self.epoch
        self.go(start + limit_s, stop=self._is_resolved)
        if not self._is_resolved():
            self.problems.append(f"the run is not resolved after {limit_s:.0f} s: {self.state.state}, {self._jobs()}")
        self.go(self.now() - self.epoch + 500)
        if not self._is_resolved():
            self.problems.append(f"the run came back: {self.state.state}, {self._jobs()}")
        self.stage.end()
        self._look_at_files()

    @property
    def discarded(self) -> bool:
        """Nothing was submitted after all, and the command took the directory away."""
        return not self.run.path.exists()

    @property
    def state(self) -> Run:
        return fold(read_journal(self.run.journal))

    def _jobs(self) -> list[str]:
        return [f"{j.job_id}: {j.base.value} {sorted(f.value for f in j.flags)} r{j.restart_count} {j.reason}"
                for j in self.slurm.controller.jobs.values() if j.request.arguments]  # fmt: skip

    def _is_resolved(self) -> bool:
        jobs = [j for j in self.slurm.controller.jobs.values() if j.request.arguments]
        if self.discarded:
            return True
        if any(j.running or j.completing or j.waiting for j in jobs):
            return False
        state = self.state
        return state.ended or state.state is RunState.HELD


@functools.cache
def rules_text() -> str:
    return load_rules().to_json()


@functools.cache
def _parsed_rules(text: str) -> Any:
    from slurmtrain.core.rules import RuleSet

    return RuleSet.from_json(text)


def install(patch: pytest.MonkeyPatch) -> Machine:
    """Patch this process for actors; the rules of a run are parsed once."""
    machine = Machine("/nonexistent", random.Random(0))
    machine.install(patch)
    patch.setattr(attempt_module, "Wake", FakeWake)
    look_here = functools.partial(NodeWatch, run_look=lambda look: look())  # not in a thread
    patch.setattr(attempt_module, "NodeWatch", look_here)
    patch.setattr(find, "check_apart", _check_here)
    for module in (judge, metric_watch):
        patch.setattr(module, "load_frozen_rules", lambda run: _parsed_rules(rules_text()))
    return machine


class Worlds:
    """Makes one world after the other in ``root``."""

    def __init__(self, root: Path, machine: Machine, patch: pytest.MonkeyPatch) -> None:
        self._root, self._machine, self._patch, self._count = root, machine, patch, 0

    def make(self, options: Options) -> World:
        self._count += 1
        folder = self._root / f"w{self._count}"
        folder.mkdir()
        world = World(folder, self._machine, options)
        for name, function in world.cluster.processes_module().items():
            self._patch.setattr(processes, name, function)
        return world

    def discard(self, world: World) -> None:
        world.stage.end()
        shutil.rmtree(world.root, ignore_errors=True)


def _check_here(path: Path, *, limit_s: float = 0.0, **how: Any) -> object:
    """Not in a process of its own, and so without a limit."""
    return check(path, **how)
