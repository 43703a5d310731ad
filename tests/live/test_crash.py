"""Real agents, gates, batch shells and watchers (two at once) are killed and frozen on a real Slurm, at their Slurm
commands in turn and at random, while runs fail, are preempted, lose nodes, reach their time limit, are cancelled.

Then the faults stop, watchers look as cron would have them do, and every run has to come to its end. What is checked:
``crash_checks``. ``SLURMTRAIN_CRASHES=300`` goes on until so many faults have struck; ``SLURMTRAIN_CRASH_SEED`` repeats
the faults of a round (not the timing). A command of a watcher that reaches Slurm late is no fault here: Slurm takes no
conditions with a requeue, so one that was sent before an execution began may hit it (it goes on from its checkpoint).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from attack import batch_side
from cluster import Cluster
from crash_checks import check_cluster, check_run, job_ids
from crash_plan import KINDS, Plans, Striker, start_watcher
from outside import Process, read_process
from programs.place import place_programs, read_newest_checkpoint
from runs import LiveRun, slurmtrain, submit, trainer
from transitions import check_transitions

CRASHES = int(os.environ.get("SLURMTRAIN_CRASHES", "1"))
SEED = int(os.environ.get("SLURMTRAIN_CRASH_SEED", "0")) or int(time.time())
LONG = CRASHES > 1
FAULTS_S = 45.0 if LONG else 20.0
HEAL_S = 420.0
CANCEL_S = 90.0
RUNS_S = 60.0
LOOKED_S = 6.0  # a watcher that lives for so long has looked
STEPS = 120
ENDED = {"Completed", "Failed", "Stopped", "Terminated"}
RETRY = {
    "in_place": 3, "requeues": 100, "infrastructure": 100, "attempts": 300, "delay_s": 0, "breaker_runs": 0,
    "exclude_nodes": False,
}  # fmt: skip
FAILS = ["--fail", "signal:SEGV", "--fail-at", "25", "--fail-launches"]


@dataclass
class Life:
    """One run of a round and what is done to it."""

    run: LiveRun
    scenario: str
    cancelled_at: float | None = None
    happened: bool = False  # what its scenario does to it from outside
    released: int = 0
    states: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scenario:
    arguments: tuple[str, ...] = ()
    retry: dict[str, Any] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    event: Callable[[Cluster, Life], None] = lambda _cluster, _life: None
    ends: frozenset[str] = frozenset({"Completed"})

    @property
    def steps(self) -> int:
        """The training's last one."""
        words = (*self.arguments, "--steps", str(STEPS))
        return int(words[words.index("--steps") + 1])


def cancel(cluster: Cluster, life: Life, by: str = "user") -> None:
    """Until Slurm has taken it: while the script is dead and nobody has requeued the job yet, there is none to cancel.

    A run that is held by then is released first, as a person would who wants it gone for good.
    """
    scancel = cluster.as_root if by == "root" else cluster.as_user
    deadline = time.monotonic() + CANCEL_S
    while time.monotonic() < deadline:
        life.cancelled_at = time.time()
        answers = [scancel("scancel", "-v", str(job)) for job in job_ids(life.run)]
        if any("error" not in answer.stderr for answer in answers):
            life.happened = True
            return
        release_held(life)
        time.sleep(1.0)
    raise AssertionError(f"{life.run.run_id}: nothing to cancel for {CANCEL_S:g} s: {[a.stderr for a in answers]}")


def cancel_by_root(cluster: Cluster, life: Life) -> None:
    cancel(cluster, life, "root")


def release_held(life: Life) -> None:
    if life.run.status()["state"] == "Held":
        life.released += 1
        life.run.slurmtrain("release", life.run.run_id)


def wait_nodes(cluster: Cluster, life: Life) -> list[str]:
    """Where the run runs, let go if it is held; empty where it does not for so long."""
    deadline = time.monotonic() + RUNS_S
    while time.monotonic() < deadline:
        jobs = [cluster.job(job) for job in job_ids(life.run)]
        if nodes := [node for job in jobs if job is not None and job.state == "RUNNING" for node in job.nodes]:
            life.happened = True
            return nodes
        release_held(life)
        time.sleep(0.5)
    return []


def preempt(cluster: Cluster, life: Life) -> None:
    for node in wait_nodes(cluster, life)[:1]:
        where = ["-p", cluster.partition("urgent"), "-w", node, "-N1", "--exclusive", "-t", "1", "-J", "urgent"]
        cluster.sbatch(*where, script="#!/bin/bash\nsleep 2\n")


def lose_node(cluster: Cluster, life: Life) -> None:
    for node in wait_nodes(cluster, life)[-1:]:
        cluster.kill_node(node)
        time.sleep(14.0)  # longer than SlurmdTimeout
        cluster.fault("heal", node)
        cluster.resume_nodes()


STOPPED = frozenset({"Stopped", "Terminated"})
LIMITED = {"time_limit": "1", "stop": {"warning_s": 20}}
# Those to which something happens later than at once go on until then; those who are cancelled would never end.
GOES_ON = ("--steps", "400")
NEVER_ENDS = ("--steps", "100000", *FAILS, "-1", "--fail-further", "15")
SCENARIOS = {
    "in place": Scenario((*FAILS, "2")),
    "requeue": Scenario((*FAILS, "1"), {"in_place": 0}),
    "cancelled": Scenario(NEVER_ENDS, {"in_place": 1}, event=cancel, ends=STOPPED),
    "hold": Scenario((*FAILS, "-1"), {"in_place": 1, "requeues": 1}, ends=frozenset({"Held"})),
    "preempted": Scenario(GOES_ON, event=preempt),
    "cancelled by root": Scenario(NEVER_ENDS, {"in_place": 0}, event=cancel_by_root, ends=STOPPED),
    "success": Scenario(),
    "node lost": Scenario(GOES_ON, event=lose_node),
    "time limit": Scenario(("--steps", "500"), spec=LIMITED),
}
SHORT = ("in place", "requeue", "cancelled", "preempted")


class Round:
    """Some runs in a store of their own, under fire."""

    def __init__(self, cluster: Cluster, store: Path, seed: int, number: int) -> None:
        self.cluster, self.number = cluster, number
        self.rng = random.Random(f"{seed}-{number}")
        self.store = store / f"round-{number}"
        self.store.mkdir(mode=0o700)
        owner = store.stat()
        os.chown(self.store, owner.st_uid, owner.st_gid)
        self.plans = Plans(self.store, place_programs(self.store) / "unreliable.sh")
        self.lives: list[Life] = []
        self.watchers: list[tuple[float, subprocess.Popen[bytes]]] = []  # since when
        self.watcher_starts = 0
        self.known = {job.job_id for job in cluster.jobs()}
        self.path = cluster.user_env()["PATH"]
        self.began = time.monotonic()

    def plan(self, name: str) -> dict[str, str]:
        """In turn: each round strikes at later calls, in another way."""
        count = self.number * 10 + len(list(self.plans.folder.iterdir()))
        first, kind = 1 + count // len(KINDS) % 15, KINDS[count % len(KINDS)]
        return self.plans.environment(self.path, self.plans.make(name, self.rng, first, kind, often=0.05))

    def submit_all(self, scenarios: tuple[str, ...]) -> None:
        names = [scenario.replace(" ", "-") for scenario in scenarios]
        plans = [self.plan(name) for name in names]
        with ThreadPoolExecutor(4) as pool:
            self.lives += pool.map(self._submit, scenarios, names, plans)

    def _submit(self, scenario: str, name: str, env: dict[str, str]) -> Life:
        wanted = SCENARIOS[scenario]
        more = ["--pace", "0.1", "--checkpoint-every", "10", "--tell-steps", *wanted.arguments]
        command = trainer(self.store, *more, "--steps", str(wanted.steps))
        spec: dict[str, Any] = {"nodes": 1, "retry": {**RETRY, **wanted.retry}, **wanted.spec}
        return Life(submit(self.cluster, self.store, command, name=name, env=env, **spec), scenario)

    # -- watchers

    def keep_watching(self, end: threading.Event) -> None:
        """Two watchers at once: who dies is replaced, and no lease keeps one from looking."""
        while not end.wait(0.3):
            (self.store / "watch.lease").unlink(missing_ok=True)
            self.watchers = [pair for pair in self.watchers if pair[1].poll() is None]
            while len(self.watchers) < 2:
                self.watcher_starts += 1
                plan = self.plan(f"watcher-{self.watcher_starts}")
                started = start_watcher(self.cluster, self.store, plan, "--interval", "1")
                self.watchers.append((time.monotonic(), started))

    def targets(self) -> dict[str, list[Process]]:
        old = time.monotonic() - LOOKED_S
        watching = [read_process(Path(f"/proc/{one.pid}")) for since, one in self.watchers if since < old]
        return {
            "agent": [p for life in self.lives for p in batch_side(life.run, "agent")],
            "watcher": [p for p in watching if p is not None and "watch" in p.argv],
            "shell": [p for life in self.lives for p in batch_side(life.run, "shell")],
        }

    @contextmanager
    def under_fire(self) -> Iterator[Striker]:
        end = threading.Event()
        keeper = threading.Thread(target=self.keep_watching, args=(end,))
        keeper.start()
        try:
            with Striker(self.rng.randrange(1 << 30), self.targets, (0.5, 3.0)) as striker:
                yield striker
        finally:
            end.set()
            keeper.join()
            self.plans.switch_off()
            for _, one in self.watchers:
                with suppress(ProcessLookupError):
                    one.send_signal(signal.SIGCONT)
                one.kill()
                one.wait()

    # -- a round

    def play(self, scenarios: tuple[str, ...]) -> Counter[str]:
        """Submit, strike, heal, check; how often what struck whom."""
        with self.under_fire() as striker:
            self.submit_all(scenarios)
            self._note(f"{len(scenarios)} submitted")
            self._let_things_happen()
        self.heal()
        struck = Counter(f"{role} {what}" for _, role, what, *_ in self.plans.read_struck())
        return struck + striker.done

    def _let_things_happen(self) -> None:
        began = time.monotonic()
        due = sorted((self.rng.uniform(0.1, 0.6) * FAULTS_S, n) for n in range(len(self.lives)))
        with ThreadPoolExecutor(len(due)) as pool:  # some take a while
            events = []
            for at, n in due:
                time.sleep(max(0.0, began + at - time.monotonic()))
                life = self.lives[n]
                events.append(pool.submit(SCENARIOS[life.scenario].event, self.cluster, life))
            time.sleep(max(0.0, began + FAULTS_S - time.monotonic()))
        for event in events:
            event.result()

    def _note(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:.0f} s: {what}", flush=True)

    def heal(self) -> None:
        """Somebody looks every few seconds; what is held is let go, until each run has come to its end."""
        self._note("faults end")
        deadline = time.monotonic() + HEAL_S
        while time.monotonic() < deadline:
            (self.store / "watch.lease").unlink(missing_ok=True)
            slurmtrain(self.cluster, self.store, "watch", "--once", check=False)
            if all(self._is_resolved(life, state) for life, state in self._states()):
                return
            time.sleep(2.0)

    def _states(self) -> list[tuple[Life, str]]:
        rows = json.loads(slurmtrain(self.cluster, self.store, "status", "--json").stdout)
        state = {row["run_id"]: row["state"] for row in rows}
        for life in self.lives:
            life.states.append(state[life.run.run_id])
        return [(life, life.states[-1]) for life in self.lives]

    def _is_resolved(self, life: Life, state: str) -> bool:
        if job_ids(life.run) & {job.job_id for job in self.cluster.jobs() if job.state in _LIVING}:
            return False
        if state == "Held" and "Held" not in SCENARIOS[life.scenario].ends and life.cancelled_at is None:
            life.released += 1
            slurmtrain(self.cluster, self.store, "release", life.run.run_id)
            return False
        return state in ENDED | {"Held"}

    def check(self) -> list[str]:
        """Sentences about what is wrong."""
        problems = [p for life in self.lives for p in check_run(life.run, life.cancelled_at)]
        problems += check_cluster(self.cluster, [life.run for life in self.lives], self.known)
        problems += check_transitions(self.store)
        for life in self.lives:
            if life.states[-1] not in SCENARIOS[life.scenario].ends:
                problems.append(f"{life.run.run_id} ({life.scenario}) is {life.states[-1]} at the end")
            elif life.states[-1] == "Completed":
                reached = read_newest_checkpoint(life.run.checkpoints)["step"]
                if reached != SCENARIOS[life.scenario].steps:
                    problems.append(f"{life.run.run_id} is Completed after {reached} steps")
        return problems

    def story(self) -> list[str]:
        struck = [" ".join(words) for words in self.plans.read_struck()]
        logs = [f"--- {life.run.run_id}\n{life.run.log()[-6000:]}" for life in self.lives]
        return [*struck, *logs][-400:]

    def summary(self) -> str:
        return ", ".join(
            f"{life.scenario}{' (happened)' if life.happened else ''}: {life.states[-1]}"
            f"{f' (released {life.released})' if life.released else ''}"
            f" {len(life.run.decisions())} attempts"
            for life in self.lives
        )


_LIVING = {"PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "REQUEUED"}


@pytest.mark.native_only
@pytest.mark.timeout(3 * 3600 if LONG else 900)
def test_crashes(cluster: Cluster, store: Path) -> None:
    total: Counter[str] = Counter()
    broken = []
    number = 0
    while sum(total.values()) < CRASHES:
        one = Round(cluster, store, SEED, number)
        total += one.play(tuple(SCENARIOS) if LONG else SHORT)
        number += 1
        print(f"round {number}: {sum(total.values())} faults: {dict(total)}\n  {one.summary()}", flush=True)
        if problems := one.check():
            broken.append("\n".join([f"round {number}, seed {SEED}:", *problems, *one.story()]))
            print(broken[-1], flush=True)
    assert not broken, broken[0]
