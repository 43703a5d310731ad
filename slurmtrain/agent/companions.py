"""The agent's side of the companions: one srun that starts them on all nodes, and word to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurmtrain.agent.companion_events import GONE, LOST, SCENE, TOLD_TO_END, CompanionLog
from slurmtrain.agent.job import JobContext, count_nodes
from slurmtrain.agent.processes import all_listen, find_launch_processes, signal_number
from slurmtrain.agent.say import say
from slurmtrain.agent.scene_words import Word, send
from slurmtrain.agent.stacks import request_stacks
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.slurm.commands import build_companion_srun
from slurmtrain.slurm.environment import beside_environment
from slurmtrain.store.publish import read_json
from slurmtrain.store.rundir import AttemptDir

STACKS_IN_S = 3.0  # until the companions of all nodes have heard of it
_DISMISSAL_S = 3.0  # companions never delay the end of the job by more
_MAX_STARTS = 4  # of the whole step, and of the companion of one node
_LOOK_S = 2.0
# A companion that is asked while Python still starts would die of it; the stop file tells it what it has missed.
_DEAF_AT_FIRST = ("/bin/sh", "-c", 'trap "" USR2; exec "$@"', "sh")
_GONE_S = 20.0  # after the last rank so long, srun should have ended


class CompanionStep:
    """The step of the companions, if the run has them. A training never fails because they could not start."""

    def __init__(self, job: JobContext, attempt: AttemptDir, slurm: SlurmClient, env: Mapping[str, str]) -> None:
        self._job = job
        self._attempt = attempt
        self._slurm = slurm
        self._env = env
        self._sruns: list[subprocess.Popen[bytes]] = []
        self._starts: Counter[str] = Counter()  # by node; "" for all of them
        self._log = CompanionLog(self._log_file)
        self._heard: dict[tuple[str, str], set[str]] = {}  # (event, launch) -> nodes
        self._scenes: Counter[str] = Counter()  # launch -> answers
        self._dead: list[str] = []  # nodes whose companion died, to be started again
        self._all_gone_at: dict[str, float] = {}
        self._asked = False
        self._leaving = False  # Slurm told them to end
        self._next_look = 0.0

    def ensure_running(self) -> None:
        """Start them; again where the step has died, but not for ever."""
        if not self._job.plan.spec.companion:
            return
        self._listen()
        if self._leaving:  # the job goes on nevertheless: a person sent its steps SIGTERM
            self._leaving = False
            self._starts[""] -= 1
            self._start()  # they dismiss those that have not left yet
        elif not self.alive and self._starts[""] < _MAX_STARTS:
            if self._starts[""]:
                self._end_step_without_srun()
            self._start()

    def look(self) -> None:
        """What they say, and whether they live: the dead ones are started again while the training goes on."""
        if not self._sruns or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK_S
        self._listen()
        if self._asked or self._leaving:
            return  # those that come now would not know that the ranks have heard the signal already
        if not self.alive:
            self.ensure_running()
        else:
            for node in self._dead if len(count_nodes(self._env)) == 1 else ():  # else srun wants its component, too
                self._start(node)
        self._dead.clear()

    def find_unheard_end(self, launch: str) -> str | None:
        """Why srun will never tell how this launch ended, in words; None while all is well."""
        if lost := self._heard.get((LOST, launch)):
            return f"slurmstepd is gone on {', '.join(sorted(lost))}"
        gone = self._heard.get((GONE, launch), ())
        if len(gone) < self._node_count:
            return None
        since = self._all_gone_at.setdefault(launch, time.monotonic())
        return "no rank is left, and srun does not end" if time.monotonic() - since > _GONE_S else None

    def send(self, word: Word) -> None:
        """Tell all companions."""
        for process in self._sruns:
            send(word, process.stdin)

    def count_scenes(self, launch: str) -> int:
        """How many nodes have said that they have taken a scene of this launch; each says it for each."""
        self._listen()
        return self._scenes[launch]

    def _listen(self) -> None:
        news = self._log.read()
        for event, launch, node in news.events:
            if event == SCENE:
                self._scenes[launch] += 1
            elif event == TOLD_TO_END:
                self._leaving = True
            else:
                self._heard.setdefault((event, launch), set()).add(node)
        self._dead += news.dead

    def steps(self) -> set[str]:
        """Slurm's step ids of the companions, as they reported them."""
        found = set()
        with contextlib.suppress(OSError, SlurmtrainError):
            for path in self._attempt.nodes.glob("*.json"):
                step = (read_json(path) or {}).get("step")
                if isinstance(step, str):
                    found.add(step)
        return found

    def ask_to_stop(self) -> None:
        """USR2 to srun reaches every companion; they hand the stop signal to the ranks."""
        self._asked = True
        if self.alive:
            self._signal(signal.SIGUSR2)
        else:
            ask_through_slurm(self._job, self._slurm, self._env)

    def ask_for_stacks(self, launch_folder: Path | None) -> float:
        """Have all ranks print their stacks at one moment, which is returned (seconds since the epoch)."""
        at = time.time() + STACKS_IN_S
        if launch_folder is not None and self.alive:
            with contextlib.suppress(StoreError):
                request_stacks(launch_folder, at)
                self._signal(signal.SIGUSR2)
        return at

    def end(self) -> None:
        """USR1 dismisses them, so that their step ends well; TERM to srun ends at once those that do not listen."""
        self._signal(signal.SIGUSR1)
        self.await_end(_DISMISSAL_S)
        self._signal(signal.SIGTERM)

    def await_end(self, seconds: float) -> None:
        """Slurm has told them to end, and they have something left to do: their srun must live as long."""
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.05)

    @property
    def alive(self) -> bool:
        return any(process.poll() is None for process in self._sruns)

    @property
    def _log_file(self) -> Path:
        return self._attempt.path / "companion.log"

    @property
    def _node_count(self) -> int:
        return sum(count_nodes(self._env))

    def _end_step_without_srun(self) -> None:
        """Companions outlive an srun that was killed; beside new ones each rank would hear a signal twice."""
        for step in self.steps():
            with contextlib.suppress(SlurmtrainError):
                self._slurm.signal_step(self._job.job_id, step, "KILL")

    def _start(self, node: str = "") -> None:
        """On all nodes, or on one whose companion died."""
        if self._starts[node] >= _MAX_STARTS:
            return
        self._starts[node] += 1
        agent = [sys.executable, "-I", str(self._job.run.agent)]
        command = [*_DEAF_AT_FIRST, *agent, "companion", str(self._job.run.path)]
        sizes = [1] if node else count_nodes(self._env)
        command.append(str(self._attempt.number))
        parts: Sequence[int | None] = (
            [None] if len(sizes) == 1 else range(len(sizes))
        )  # one srun for all would speak to the first alone
        sruns = [build_companion_srun(sizes, command, node=node, only=part) for part in parts]
        env = {**beside_environment(self._env), "SLURMTRAIN_AGENT": f"{os.getpid()}@{self._job.host}"}
        try:
            with self._log_file.open("ab") as log:  # srun talks; the training's log is not its
                self._sruns += [
                    subprocess.Popen(  # its input reaches all of them
                        argv, stdin=subprocess.PIPE, stdout=log, stderr=log, env=env, start_new_session=True
                    )
                    for argv in sruns
                ]
        except OSError as exc:
            say(f"the companions cannot be started ({exc}); the training goes on without them")

    def _signal(self, number: int) -> None:
        for process in self._sruns:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)


def ask_through_slurm(job: JobContext, slurm: SlurmClient, env: Mapping[str, str]) -> None:
    """Without companions Slurm hands the stop signal to the tasks themselves, on all nodes.

    Only if those on this node catch it: a ``bash -c`` or torchrun would die of it, and there the stop file has to do.
    """
    name = job.plan.spec.stop.signal
    number = signal_number(name)
    tasks = find_launch_processes(env.get("SLURM_JOB_ID", ""))
    if number is None or not all_listen(tasks, number):
        return
    with contextlib.suppress(SlurmtrainError):
        for step in {task.step for task in tasks}:
            slurm.signal_step(job.job_id, step, name.upper().removeprefix("SIG"))
