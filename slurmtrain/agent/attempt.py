"""One attempt inside the job: gate, companions, launches with restart in place, and how the job is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from types import FrameType

from slurmtrain.agent.companions import CompanionStep
from slurmtrain.agent.gate import TurnedAway, pass_gate
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.launch import LaunchProcess, end_launch, start_launch
from slurmtrain.agent.leave import leave
from slurmtrain.agent.processes import find_launch_processes
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import StopReason, StopWatch, is_ours, look
from slurmtrain.agent.verdict import LaunchEnd, judge_launch
from slurmtrain.agent.wake import Wake
from slurmtrain.core.decision import Action, Decision
from slurmtrain.core.run import find_attempt
from slurmtrain.errors import StoreError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.checkpoints import find_newest, set_aside
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.rundir import AttemptDir


class AttemptRunner:
    """Runs launches until one of them is decided to be the last."""

    def __init__(
        self, job: JobContext, attempt: AttemptDir, slurm: SlurmClient, record: Record, env: Mapping[str, str]
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._slurm = slurm
        self._record = record
        self._env = env
        self._spec = job.plan.spec
        self._watch = StopWatch(job.run, job.job_id, self._spec, slurm, look(slurm, job.job_id))
        self._wake = Wake()
        self._companions = CompanionStep(job, attempt, env) if self._spec.companion else None

    def run(self, number: int) -> int:
        """Launch, judge, restart… from launch ``number`` on; the batch script's exit code."""
        self._listen()
        if self._companions:
            self._companions.start()
        try:
            while True:
                end = self._run_launch(number)
                decision = judge_launch(self._job, end, self._slurm, self._record)
                if decision is None:
                    return end.exit_code
                if decision.action is not Action.RESTART_IN_PLACE:
                    self._roll_back(decision, end)
                    return leave(self._job, self._attempt, decision, end, self._slurm, self._record)
                self._record.decided(number, decision)
                self._roll_back(decision, end)
                if not self._pause(decision.delay_s):
                    return end.exit_code
                number += 1
        finally:
            if self._companions:
                self._companions.end()

    def _listen(self) -> None:
        def on_signal(_number: int, _frame: FrameType | None) -> None:
            self._watch.on_signal()

        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    def _run_launch(self, number: int) -> LaunchEnd:
        newest = find_newest(self._job.run.path, self._spec.checkpoint)
        resume = f", resumes from {newest.path.name}" if newest else ""
        where = f"job {self._job.job_id} on {self._job.nodes}"
        say(f"=== attempt {self._attempt.number} launch {number} {where}{resume} ===")
        with contextlib.suppress(OSError):
            self._attempt.stop_file.unlink()
        launch = start_launch(self._job, self._attempt, number, newest.path if newest else None, self._env)
        log_file = os.path.relpath(launch.log_file, self._job.run.path)
        self._record.launch_started(number, log_file, launch.log_offset, newest)
        stop, code = self._wait(launch)
        return LaunchEnd(launch, stop, code, newest.path if newest else None)

    def _wait(self, launch: LaunchProcess) -> tuple[StopReason | None, int]:
        """Wait for the launch's end; ask it to stop when there is a reason, end it when it does not listen."""
        stop: StopReason | None = None
        while (code := launch.poll()) is None:
            if stop is None and (stop := self._watch.check()) is not None:
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
        if stop.reason == "user":
            self._record.stop_noticed(self._job.run)
        self._record.stop_sent(launch.number, stop.reason, stop.deadline)

    def _end(self, launch: LaunchProcess, grace_s: float) -> int:
        key = f"{self._attempt.number}.{launch.number}"
        raw_job_id = self._env.get("SLURM_JOB_ID", "")
        step = next((p.step for p in find_launch_processes(raw_job_id) if p.launch == key), None)
        return end_launch(launch, self._job.job_id, step, self._slurm, grace_s)

    def _primary_is_done(self, launch: LaunchProcess) -> bool:
        """``success: primary``: rank 0 ended well, which its wrapper tells by a file."""
        return self._spec.success == "primary" and (self._attempt.launch(launch.number) / "primary-done").exists()

    def _roll_back(self, decision: Decision, end: LaunchEnd) -> None:
        if decision.rollback and end.resumed_from is not None:
            try:
                say(f"set aside {set_aside(end.resumed_from).name}; the checkpoint before it is used")
            except StoreError as exc:
                say(str(exc))

    def _pause(self, seconds: int) -> bool:
        """Wait before the next launch; False where Slurm ended the job meanwhile."""
        if seconds:
            say(f"waiting {seconds} s before the next launch")
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._watch.signalled:
            self._wake.sleep(min(left, 1.0))
        seen = look(self._slurm, self._job.job_id) if self._watch.signalled else None
        if seen is not None and not is_ours(seen, self._job.restart_count):
            say(f"Slurm says {seen.state}: no further launch")
            return False
        return True


def run_attempt(job: JobContext, slurm: SlurmClient, env: Mapping[str, str]) -> int:
    """Gate and launches; the batch script's exit code."""
    journal = JournalWriter(job.run.journal, f"agent-{job.job_id}-{job.restart_count}-{job.host}-{os.getpid()}")
    try:
        passed = pass_gate(job, slurm, journal)
        if isinstance(passed, TurnedAway):
            say(passed.reason)
            return passed.exit_code
        record = Record(journal, job.run.journal, passed.attempt.number)
        first = _take_over(record, passed.attempt, env) if passed.recovered else 0
    except StoreError as exc:
        return _train_without_record(job, env, str(exc))
    return AttemptRunner(job, passed.attempt, slurm, record, env).run(first)


def _take_over(record: Record, attempt: AttemptDir, env: Mapping[str, str]) -> int:
    """An agent before us died: end what it left behind on this node; the number of the next launch."""
    say("the agent had died; a new one takes over")
    for process in find_launch_processes(env.get("SLURM_JOB_ID", "")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
    known = find_attempt(record.read_run(), attempt.number)
    return known.launches[-1].number + 1 if known and known.launches else 0


def _train_without_record(job: JobContext, env: Mapping[str, str], why: str) -> int:
    """The store cannot be written: train all the same, decide nothing."""
    say(f"{why}; the training runs, and nothing is decided here")
    try:
        return subprocess.call(["/bin/bash", str(job.run.launch_script)], env=dict(env))
    except OSError as exc:
        say(f"cannot start the training: {exc}")
        return 1
