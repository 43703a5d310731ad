"""Executions of jobs on the Slurm in memory: the batch script's rules, srun and the ranks, nodes that are lost.

The batch script is played as ``templates/train.sbatch.j2`` writes it (start the agent, up to four times, unless TERM
came). The training is played at the smallest seam, ``subprocess.Popen`` of ``launch.sh`` and ``/proc``: a step of the
Slurm in memory that counts steps, writes checkpoints, and leaves when it is asked to. Everything else is real code.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from actors import Actor, Stage

from slurmtrain.agent import processes
from slurmtrain.agent.attempt import run_attempt
from slurmtrain.agent.job import read_job_context
from slurmtrain.agent.processes import Process
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.ended import FIRST_LINE
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.testing import Behaviour, MemorySlurm, SignalSent
from slurmtrain.testing.memory_model import MemoryJob

AGENT_STARTS = 4
_real_open = io.open  # slurmstepd writes the log, in whose thread so ever a signal is sent
SAVE_S = 1.0
CATCHES_USR2 = 1 << (int(signal.SIGUSR2) - 1)
TERMINATED, KILLED = 128 + int(signal.SIGTERM), 128 + int(signal.SIGKILL)


@dataclass
class Training:
    """srun and its tasks: one launch. ``plan`` says what happens at a step: an exit code and log text, or nothing."""

    execution: Execution
    launch: str  # "<attempt>.<launch>"
    step_id: str
    stop_file: Path | None
    started: float
    step: int
    ended: float | None = None  # of the tasks
    exit_code: int | None = None  # of the tasks
    srun: int | None = None  # exit status of srun as Popen shows it; None while it lives
    pid: int = 0
    leaving_at: float | None = None
    began_at_step: int = 0
    asked: bool = False

    @property
    def alive(self) -> bool:
        return self.ended is None


@dataclass
class Execution:
    """One start of a batch script. ``cut_off``: its node lost contact; nobody can reach its processes."""

    job: MemoryJob
    raw_id: int
    restart: int
    submission: int
    node: str
    started: float
    batch_pid: int
    trainings: list[Training] = field(default_factory=list)
    agent: Actor | None = None
    agent_starts: int = 0
    terminated: bool = False
    over: bool = False
    ended: float | None = None
    cut_off: bool = False
    asked_for_requeue: bool = False  # our agent did
    taken: bool = False  # Slurm ended it (preemption, lost node, a person's requeue), not we

    @property
    def name(self) -> str:
        return f"{self.job.job_id}r{self.restart}"


Outcome = tuple[int, str]  # exit code, text for the log


class Cluster:
    """Executions on a ``MemorySlurm``. ``client_of`` makes the Slurm client of an actor."""

    def __init__(
        self,
        stage: Stage,
        slurm: MemorySlurm,
        run_dir: Path,
        plan: Callable[[Training], Outcome | None],
        client_of: Callable[[Actor], SlurmClient],
        takes: Callable[[Path], bool] = lambda _path: True,
    ) -> None:
        self.stage, self.slurm, self.run_dir, self.plan, self.client_of = stage, slurm, run_dir, plan, client_of
        self.executions: list[Execution] = []
        self.checkpoint_every = 3
        self.saved: set[str] = set()  # names of checkpoints
        self.deaf = False  # the training ignores every request to stop
        self.takes = takes
        slurm.behaviour = Behaviour(ignores_term=True)
        slurm.controller.on_start = self._on_start
        slurm.controller.on_signal = self._on_signal
        self._next_pid = 100_000

    # -- the batch script --------------------------------------------------------------------------------------------

    def _on_start(self, job: MemoryJob) -> None:
        if not job.request.arguments:
            return  # not a job of ours
        self._next_pid += 10
        execution = Execution(
            job, job.raw_id, job.restart_count, int(job.request.arguments[0]), job.nodes[0], self.stage.now(),
            self._next_pid,
        )  # fmt: skip
        self.executions.append(execution)
        first = FIRST_LINE.format(job_id=job.job_id, restart_count=job.restart_count)
        self.write_log(job.job_id, f"{first} on {job.nodes[0]}\n")
        self._start_agent(execution)

    def _start_agent(self, execution: Execution) -> None:
        execution.agent_starts += 1
        takes_over = execution.agent_starts > 1

        def body() -> int:
            env = {
                "SLURM_JOB_ID": str(execution.raw_id),
                **_array_variables(execution.job),
                "SLURM_RESTART_COUNT": str(execution.restart),
                "SLURMTRAIN_SUBMISSION": str(execution.submission),
                "SLURMD_NODENAME": execution.node,
                "SLURM_JOB_NODELIST": execution.node,
                "SLURM_JOB_NUM_NODES": "1",
            }
            actor = execution.agent
            assert actor is not None
            try:
                job = read_job_context(self.run_dir, env)
            except SlurmtrainError:
                return 1  # the real one goes on without the agent; see _agent_cannot_start
            return run_attempt(job, self.client_of(actor), env, takes_over=takes_over)

        name = f"agent {execution.name}.{execution.agent_starts}"
        actor = execution.agent = self.stage.spawn(name, "agent", execution.node, body, delay_s=0.2)
        actor.parent_pid = execution.batch_pid
        actor.handlers = {int(signal.SIGTERM): signal.SIG_IGN, int(signal.SIGUSR2): signal.SIG_IGN}

    def execution_of(self, actor: Actor) -> Execution:
        return next(e for e in self.executions if e.agent is actor)

    def agent_ended(self, actor: Actor) -> None:
        """What the batch script does then."""
        execution = self.execution_of(actor)
        if execution.over:
            return
        if not actor.doomed and actor.error is None:
            self._finish(execution, int(actor.result or 0))
        elif execution.terminated or execution.agent_starts >= AGENT_STARTS:
            self._finish(execution, KILLED if actor.doomed else 70)
        else:
            self._start_agent(execution)

    def _finish(self, execution: Execution, code: int) -> None:
        """The batch script ends: so do, by Slurm's hand, all processes of the job."""
        if execution.cut_off:
            self._end_processes(execution, steps=False)
            return
        job = self.slurm.controller.jobs.get(execution.raw_id)
        self._end_processes(execution)
        if job is execution.job and self._is_present(execution):
            self.slurm.finish(job.job_id, code)

    def kill_script(self, execution: Execution) -> None:
        """SIGKILL to bash: the job ends, and Slurm ends the rest of it."""
        self._end_processes(execution)
        if self._is_present(execution) and execution.job.running:
            self.slurm.finish(execution.job.job_id, 0, 9)

    def _end_processes(self, execution: Execution, *, steps: bool = True) -> None:
        execution.over = True
        execution.ended = execution.ended or self.stage.now()
        if execution.agent is not None and not execution.agent.done:
            execution.agent.kill()
        for training in execution.trainings if steps else ():
            self._end_tasks(training, KILLED)

    def _is_present(self, execution: Execution) -> bool:
        """Whether Slurm still has this execution: it runs, or it is cleaned up (a requeue counts it up at once)."""
        job = self.slurm.controller.jobs.get(execution.raw_id)
        if job is not execution.job:
            return False
        if job.running:
            return job.restart_count == execution.restart
        return job.completing and job.restart_count - execution.restart in (0, 1)

    def sweep(self) -> None:
        """What slurmd does once Slurm is done with a job: KILL, on every node that it can reach."""
        for execution in self.executions:
            if execution.cut_off or self._is_present(execution):
                continue
            if not execution.over or any(t.alive for t in execution.trainings):
                self._end_processes(execution)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def lose_node(self, name: str) -> None:
        for execution in self.executions:
            if execution.node == name and not execution.over:
                execution.cut_off = execution.taken = True
        self.slurm.fail_node(name)

    def return_node(self, name: str) -> None:
        self.slurm.restore_node(name)
        for execution in self.executions:
            if execution.node == name:
                execution.cut_off = False

    # -- signals -----------------------------------------------------------------------------------------------------

    def _on_signal(self, sent: SignalSent) -> None:
        for execution in self.executions:
            if execution.job.job_id != sent.job_id or execution.over or execution.cut_off:
                continue
            if execution.restart != execution.job.restart_count:
                continue
            number = int(signal.Signals[f"SIG{sent.name}"])
            if (
                sent.target == "batch" and sent.name == "TERM" and not execution.terminated
            ):  # the first line is the only
                at = f"CANCELLED AT 2026-11-29T17:11:58 {sent.why}".rstrip()
                self.write_log(
                    sent.job_id, f"slurmstepd: error: *** JOB {execution.raw_id} ON {execution.node} {at} ***\n"
                )
            if sent.target == "batch":
                execution.taken |= sent.name == "TERM" and not execution.asked_for_requeue
                execution.terminated |= sent.name == "TERM"
                if execution.agent is not None and not execution.agent.done:
                    execution.agent.signal(number)
            for training in execution.trainings:
                if training.alive and sent.target in ("steps", training.step_id):
                    self._signal_tasks(training, number)

    def _signal_tasks(self, training: Training, number: int) -> None:
        if number == signal.SIGKILL:
            self._end_tasks(training, KILLED)
        elif number == signal.SIGTERM and not self.deaf:
            training.leaving_at = training.leaving_at or self.stage.now() + 0.5
            training.exit_code = TERMINATED
        elif number == signal.SIGUSR2:
            self._ask(training)

    def _ask(self, training: Training) -> None:
        if not self.deaf and training.leaving_at is None:
            training.asked = True
            training.leaving_at, training.exit_code = self.stage.now() + SAVE_S, 0

    # -- the training ------------------------------------------------------------------------------------------------

    def popen(self, actor: Actor, argv: list[str], **kwargs: Any) -> FakePopen:
        if not str(argv[-1]).endswith("launch.sh"):
            raise FileNotFoundError(2, "No such file or directory", argv[0])  # nothing else is installed here
        env = kwargs.get("env") or {}
        execution = self.execution_of(actor)
        self._next_pid += 10
        resume = env.get("SLURMTRAIN_RESUME_FROM") or ""
        step = int(resume.rpartition("-")[2]) if resume else 0
        stop = env.get("SLURMTRAIN_STOP_FILE")
        training = Training(
            execution, env.get("SLURMTRAIN_LAUNCH_KEY", "?"), str(len(execution.trainings)),
            Path(stop) if stop else None, self.stage.now(), step, pid=self._next_pid, began_at_step=step,
        )  # fmt: skip
        execution.trainings.append(training)
        if self._is_present(execution) and execution.job.running and not execution.cut_off:
            self.slurm.controller.start_step(execution.job, training.step_id, [execution.node])
        else:
            training.exit_code = training.srun = 1  # srun is refused in any other state
            training.ended = self.stage.now()
        return FakePopen(training, actor)

    def tick(self) -> None:
        """One second of every training that lives."""
        for execution in self.executions:
            for training in execution.trainings:
                if training.alive:
                    self._train(training)

    def _train(self, training: Training) -> None:
        now = self.stage.now()
        if training.leaving_at is not None and now >= training.leaving_at:
            if training.exit_code == 0:
                self._save(training)
            self._end_tasks(training, training.exit_code or 0)
            return
        if training.stop_file is not None and training.stop_file.exists():
            self._ask(training)
        training.step += 1
        if training.step % self.checkpoint_every == 0:
            self._save(training)
        outcome = self.plan(training)
        if outcome is not None:
            code, text = outcome
            self.write_log(training.execution.job.job_id, text)
            self._end_tasks(training, code)

    def write_log(self, job_id: object, text: str) -> None:
        if self.run_dir.is_dir():
            with _real_open(self.run_dir / "logs" / f"train-{job_id}.log", "a") as log:
                log.write(text)

    def _save(self, training: Training) -> None:
        folder = self.run_dir / "checkpoints"
        if not self.run_dir.is_dir():
            return  # ``submit`` has taken the run away; a job that Slurm took all the same has nowhere to write
        folder.mkdir(exist_ok=True)
        (folder / f"step-{training.step:06d}").write_bytes(b"weights" * 9)
        self.saved.add(f"step-{training.step:06d}")

    def _end_tasks(self, training: Training, code: int) -> None:
        if not training.alive:
            return
        training.ended, training.exit_code = self.stage.now(), code
        if training.srun is None:
            training.srun = code
        steps = training.execution.job.steps
        if training.step_id in steps and not training.execution.cut_off:
            state = "COMPLETED" if code == 0 else "FAILED"
            self.slurm.controller.end_step(training.execution.job, training.step_id, state, code, 0)
        agent = training.execution.agent
        if agent is not None and not agent.done:
            agent.signal(int(signal.SIGCHLD))

    # -- /proc -------------------------------------------------------------------------------------------------------

    def find_processes(self, actor: Actor, job_id: str, *, of_step: bool) -> list[Process]:
        found = []
        for execution in self.executions:
            if str(execution.raw_id) != job_id or execution.node != actor.host:
                continue
            for t in execution.trainings:
                if of_step and t.alive:
                    found.append(Process(t.pid + 1, t.pid, 1, CATCHES_USR2, t.launch, t.step_id))
                elif not of_step and t.srun is None:
                    found.append(Process(t.pid, execution.batch_pid, 1, 0, t.launch, ""))
        return found

    def kill(self, actor: Actor, pid: int, number: int) -> None:
        for execution in self.executions:
            for training in execution.trainings:
                if pid == training.pid + 1 and training.alive:
                    self._signal_tasks(training, number)
                elif pid == training.pid and training.srun is None:
                    training.srun = -number
                    if number == signal.SIGTERM:  # srun kills its tasks at once
                        self._end_tasks(training, KILLED)

    def processes_module(self) -> dict[str, Callable[..., Any]]:
        """Replacements for ``slurmtrain.agent.processes``: what it reads from /proc, and its kill."""
        from actors import current

        def find(job_id: str, *, of_step: bool) -> list[Process]:
            actor = current()
            return [] if actor is None else self.find_processes(actor, job_id, of_step=of_step)

        def kill(process: Process, number: int) -> bool:
            actor = current()
            if actor is not None:
                self.kill(actor, process.pid, number)
            return True

        return {"_find": find, "_kill": kill}


def _array_variables(job: MemoryJob) -> dict[str, str]:
    task = job.job_id.array_task
    return {} if task is None else {"SLURM_ARRAY_JOB_ID": str(job.job_id.base), "SLURM_ARRAY_TASK_ID": str(task)}


class FakePopen:
    """``launch.sh``, which is srun from its last line on."""

    def __init__(self, training: Training, actor: Actor) -> None:
        self.training, self.pid, self._actor = training, training.pid, actor

    def poll(self) -> int | None:
        return self.training.srun

    def kill(self) -> None:
        if self.training.srun is None:
            self.training.srun = -int(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        while self.training.srun is None:
            self._actor.block(1.0)
        return self.training.srun

    def __enter__(self) -> FakePopen:
        return self

    def __exit__(self, *_args: object) -> None:
        return None


class FakeWake:
    """``agent.wake.Wake`` without a pipe: a signal to the actor ends its sleep."""

    def sleep(self, seconds: float) -> None:
        from actors import current

        actor = current()
        assert actor is not None
        actor.block(max(0.0, seconds), interruptible=True)


assert {"_find", "_kill"} <= set(vars(processes))
TICK = timedelta(seconds=1)
