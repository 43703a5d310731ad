"""One attempt inside the job: gate, companion, launches with restart in place, and how it is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from slurmtrain.agent.companions import CompanionStep
from slurmtrain.agent.gate import TurnedAway, pass_gate
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.launch import LaunchProcess, end_launch, start_launch
from slurmtrain.agent.leave import carry_out, publish
from slurmtrain.agent.processes import find_launch_processes
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import StopReason, StopWatch, look
from slurmtrain.agent.wake import Wake
from slurmtrain.core.decision import Action, Decision, decision_to_dict
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.events import Decided, Diagnosed, Event, LaunchEnded, LaunchStarted, StopRequested, StopSent
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.jobstate import is_running
from slurmtrain.core.run import fold
from slurmtrain.errors import StoreError
from slurmtrain.ops.judge import LogRange, decide_ending, diagnose_log
from slurmtrain.ops.requeued import read_rank_exits
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.checkpoints import find_newest, set_aside
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.rundir import AttemptDir


class AttemptRunner:
    """Runs launches until one of them is decided to be the last."""

    def __init__(
        self, job: JobContext, attempt: AttemptDir, slurm: SlurmClient, journal: JournalWriter, env: Mapping[str, str]
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._slurm = slurm
        self._journal = journal
        self._env = env
        self._spec = job.plan.spec
        self._watch = StopWatch(job.run, job.job_id, self._spec, slurm, look(slurm, job.job_id))
        self._wake = Wake()
        self._companions = CompanionStep(job, attempt, env) if self._spec.companion else None
        self._resumed_from: Path | None = None

    def run(self, first_launch: int) -> int:
        """The batch script's exit code."""
        self._listen()
        if self._companions:
            self._companions.start()
        number = first_launch
        try:
            while True:
                launch, stop, code = self._run_launch(number)
                decision = self._judge(launch, stop, code)
                if decision is None or decision.action is not Action.RESTART_IN_PLACE:
                    return self._leave(decision, number, code)
                self._prepare_restart(decision)
                number += 1
        finally:
            if self._companions:
                self._companions.end()

    def _listen(self) -> None:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            self._watch.on_signal()

        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    # --- one launch

    def _run_launch(self, number: int) -> tuple[LaunchProcess, StopReason | None, int]:
        newest = find_newest(self._job.run.path, self._spec.checkpoint)
        self._resumed_from = newest.path if newest else None
        resume = f", resumes from {newest.path.name}" if newest else ""
        where = f"job {self._job.job_id} on {self._job.nodes}"
        say(f"=== attempt {self._attempt.number} launch {number} {where}{resume} ===")
        with contextlib.suppress(OSError):
            self._attempt.stop_file.unlink()
        launch = start_launch(self._job, self._attempt, number, self._resumed_from, self._env)
        self._record(
            LaunchStarted(
                at=launch.started_at,
                who="agent",
                attempt=self._attempt.number,
                launch=number,
                resume_from=str(newest.path) if newest else None,
                progress=newest.step if newest else None,
                log_file=os.path.relpath(launch.log_file, self._job.run.path),
                log_offset=launch.log_offset,
            )
        )
        stop, code = self._wait(launch)
        return launch, stop, code

    def _wait(self, launch: LaunchProcess) -> tuple[StopReason | None, int]:
        """Wait for the launch's end; ask it to stop when there is a reason, end it when it does not listen."""
        stop: StopReason | None = None
        while (code := launch.poll()) is None:
            if stop is None:
                stop = self._watch.check()
                if stop is not None:
                    self._ask_to_stop(launch, stop)
            if stop is not None and stop.deadline is not None and time.time() >= stop.deadline:
                say(f"the training did not leave by itself: ending it ({stop.reason})")
                return stop, self._end(launch, stop.grace_s)
            if self._primary_is_done(launch):
                self._end(launch, float(self._spec.stop.grace_s))
                return stop, 0
            pause = self._watch.seconds_to_next_look()
            if stop is not None and stop.deadline is not None:
                pause = max(0.05, min(pause, stop.deadline - time.time()))
            self._wake.sleep(pause)
        return stop, code

    def _ask_to_stop(self, launch: LaunchProcess, stop: StopReason) -> None:
        say(f"asking the training to save and leave: {stop.reason}")
        with contextlib.suppress(OSError):
            self._attempt.stop_file.write_text(stop.reason + "\n")
        if self._companions:
            self._companions.ask_to_stop()
        events: list[Event] = []
        if stop.reason == "user":
            by = f"the file {self._job.run.stop_file.name}"
            events.append(StopRequested(at=time.time(), who="agent", attempt=self._attempt.number, by=by))
        events.append(
            StopSent(
                at=time.time(),
                who="agent",
                attempt=self._attempt.number,
                launch=launch.number,
                reason=stop.reason,
                deadline=stop.deadline,
            )
        )
        self._record(*events)

    def _end(self, launch: LaunchProcess, grace_s: float) -> int:
        return end_launch(launch, self._job.job_id, self._step_of(launch), self._slurm, grace_s)

    def _step_of(self, launch: LaunchProcess) -> str | None:
        key = f"{self._attempt.number}.{launch.number}"
        raw = self._env.get("SLURM_JOB_ID", "")
        return next((p.step for p in find_launch_processes(raw) if p.launch == key), None)

    def _primary_is_done(self, launch: LaunchProcess) -> bool:
        if self._spec.success != "primary":
            return False
        return (self._attempt.launch(launch.number) / "primary-done").exists()

    # --- its end

    def _judge(self, launch: LaunchProcess, stop: StopReason | None, code: int) -> Decision | None:
        """Diagnose and decide; None where the decision is not ours (the job is not RUNNING any more)."""
        log = LogRange(launch.log_file, launch.log_offset, launch.log_end())
        exits = read_rank_exits(log)
        record = look(self._slurm, self._job.job_id)
        if stop is None and self._watch.is_preempted(record):
            stop = StopReason("preempted", None)
        done = self._job.run.done_file.exists()
        reason = stop.reason if stop else None
        self._record_end(launch, reason, code, done, exits)
        if record is not None and not is_running(record.state):
            say(f"Slurm says {record.state}: the decision is not made here")
            return None
        diagnosis = self._diagnose(log, code, reason, exits)
        if code != 0 and reason is None:
            self._record(self._diagnosed(launch, diagnosis))
            say(f"launch {launch.number} failed: {diagnosis.sentence or diagnosis.cause}")
        decision = decide_ending(
            fold(read_journal(self._job.run.journal)),
            self._spec,
            diagnosis,
            exit_code=culprit_code(code, exits),
            script_alive=True,
            stop_reason=reason,
            done=done,
            resumed_from=str(self._resumed_from) if self._resumed_from else None,
        )
        say(f"decision: {decision.action.value} ({decision.reason})")
        if decision.action is Action.RESTART_IN_PLACE:
            self._record(
                Decided(
                    at=time.time(),
                    who="agent",
                    attempt=self._attempt.number,
                    launch=launch.number,
                    decision=decision_to_dict(decision),
                ),
                sync=True,
            )
        return decision

    def _diagnose(self, log: LogRange, code: int, reason: str | None, exits: list[RankExit]) -> Diagnosis:
        culprit = culprit_code(code, exits)
        facts = Facts(
            state="FAILED" if code and reason is None else None,
            exit_code=culprit,
            signal=next((e.signal for e in exits[:1]), None),
            rank_exits=tuple(exits),
            stop_sent=reason,
            restarts=self._job.restart_count,
        )
        return diagnose_log(self._job.run, facts, log)

    def _diagnosed(self, launch: LaunchProcess, diagnosis: Diagnosis) -> Diagnosed:
        return Diagnosed(
            at=time.time(),
            who="agent",
            attempt=self._attempt.number,
            launch=launch.number,
            diagnosis=diagnosis.to_dict(),
        )

    def _record_end(
        self, launch: LaunchProcess, reason: str | None, code: int, done: bool, exits: list[RankExit]
    ) -> None:
        newest = find_newest(self._job.run.path, self._spec.checkpoint)
        self._record(
            LaunchEnded(
                at=time.time(),
                who="agent",
                attempt=self._attempt.number,
                launch=launch.number,
                exit_code=code,
                duration_s=round(time.time() - launch.started_at, 3),
                stop_reason=reason,
                progress=newest.step if newest else None,
                done=done,
                rank_exits=tuple(
                    {"rank": e.rank, "node": e.node, "exit_code": e.exit_code, "signal": e.signal, "order": e.order}
                    for e in exits[:1024]
                ),
                log_end=launch.log_end(),
            ),
            sync=True,
        )

    def _prepare_restart(self, decision: Decision) -> None:
        if decision.rollback and self._resumed_from is not None:
            with contextlib.suppress(StoreError):
                say(f"set aside {set_aside(self._resumed_from).name}; the checkpoint before it is used")
        if decision.delay_s:
            say(f"waiting {decision.delay_s} s before the next launch")
            self._wake.sleep_fully(decision.delay_s)

    def _leave(self, decision: Decision | None, launch: int, code: int) -> int:
        if decision is None or not publish(self._job, self._attempt, decision, launch, self._journal):
            return code
        if decision.action is Action.COMPLETE:
            self._write_done()
            return 0
        if decision.rollback and self._resumed_from is not None:
            with contextlib.suppress(StoreError):
                set_aside(self._resumed_from)
        if carry_out(self._job, self._attempt, decision, self._slurm, self._journal):
            return {Action.REQUEUE: 0, Action.STOP: code, Action.HOLD: code or 1}.get(decision.action, code)
        return code

    def _write_done(self) -> None:
        with contextlib.suppress(OSError):
            if not self._job.run.done_file.exists():
                self._job.run.done_file.write_text(f"attempt {self._attempt.number}\n")

    def _record(self, *events: Event, sync: bool = False) -> None:
        """The training never ends because slurmtrain could not write."""
        try:
            self._journal.append(*events, sync=sync)
        except StoreError as exc:
            say(f"{exc}; the training goes on")


def culprit_code(code: int, exits: list[RankExit]) -> int:
    """The exit code of the rank that ended first: srun's own is that of the peers it killed."""
    if code == 0 or not exits:
        return code
    first = min(exits, key=lambda e: e.order)
    if first.exit_code is not None:
        return first.exit_code
    return 128 + first.signal if first.signal is not None else code


def run_attempt(job: JobContext, slurm: SlurmClient, env: Mapping[str, str]) -> int:
    """Gate and launches; the batch script's exit code."""
    journal = JournalWriter(job.run.journal, f"agent-{job.job_id}-{job.restart_count}-{job.host}-{os.getpid()}")
    try:
        passed = pass_gate(job, slurm, journal)
    except StoreError as exc:
        return _train_without_record(job, env, str(exc))
    if isinstance(passed, TurnedAway):
        say(passed.reason)
        return passed.exit_code
    first = _next_launch(job, passed.attempt) if passed.recovered else 0
    return AttemptRunner(job, passed.attempt, slurm, journal, env).run(first)


def _next_launch(job: JobContext, attempt: AttemptDir) -> int:
    """An agent before us died: end what it left behind, count on from its launches."""
    say("the agent had died; a new one takes over")
    raw = str(os.environ.get("SLURM_JOB_ID", ""))
    for process in find_launch_processes(raw):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    known = [a for a in fold(read_journal(job.run.journal)).attempts if a.number == attempt.number]
    launches = known[0].launches if known else ()
    return launches[-1].number + 1 if launches else 0


def _train_without_record(job: JobContext, env: Mapping[str, str], why: str) -> int:
    """The store cannot be written: train all the same, decide nothing."""
    say(f"{why}; the training runs, and nothing is decided here")
    try:
        return subprocess.call(["/bin/bash", str(job.run.launch_script)], env=dict(env))
    except OSError as exc:
        say(f"cannot start the training: {exc}")
        return 1
