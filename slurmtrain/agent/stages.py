"""``stage_in`` before the first launch of an attempt, ``stage_out`` once the training has finished.

A stage that fails is tried again here, up to three times in all. Then a stage_in is judged like a launch that failed
(another allocation, or a person), without counting as one. A stage_out never leads to another training: the run is
held, and a release tries the upload alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from slurmtrain.agent.fence import Fence
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.leftovers import end_leftovers
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.stops import StopReason, StopWatch, is_ours, look_patiently
from slurmtrain.agent.verdict import decide_between_launches
from slurmtrain.agent.wake import Wake
from slurmtrain.checkpoints.find import checkpoint_dir, find_newest
from slurmtrain.core.budget import retry_for
from slurmtrain.core.causes import CAUSES
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import Facts
from slurmtrain.core.policy import DO_NOT_RETRY
from slurmtrain.core.spec import StageIn, StageOut
from slurmtrain.errors import SlurmtrainError
from slurmtrain.ops.judge import LogRange, decide_ending, diagnose_log
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir

TIMED_OUT = 124  # as timeout(1) says it
_RETRIES = 2  # in place, at most
_FIRST_PAUSE_S = 5
_GRACE_S = 10.0
_NEVER_HERE = frozenset(
    {"stop", "hold", "requeue", "requeue_exclude"}
)  # first rungs that no retry on these nodes cures


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the launch loop looks at while something runs, and how it waits."""

    watch: StopWatch
    fence: Fence
    wake: Wake
    pause: Callable[[Decision], Decision | None]
    companion_steps: Callable[[], Collection[str]]


@dataclass(frozen=True, slots=True)
class Staged:
    """How a stage came out. Not ``ok`` and no ``decision``: it is not decided in this job."""

    ok: bool
    decision: Decision | None = None
    exit_code: int = 0


_OK = Staged(True)


@dataclass(frozen=True, slots=True)
class _End:
    """``gone``: Slurm has taken the job away, or a later attempt has begun."""

    exit_code: int
    stop: StopReason | None
    gone: bool
    diagnosis: Diagnosis | None


_Why: TypeAlias = "StopReason | Literal['gone'] | None"


class Stages:
    """The stages of one attempt."""

    def __init__(
        self,
        job: JobContext,
        attempt: AttemptDir,
        slurm: SlurmClient,
        record: Record,
        env: Mapping[str, str],
        outlook: Outlook,
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._slurm = slurm
        self._record = record
        self._env = env
        self._out = outlook
        self._spec = job.plan.spec

    def bring_in(self) -> Staged:
        """Run ``stage_in``, once in an attempt however often its agent dies."""
        marker = self._attempt.path / "stage_in-done"
        if not self._spec.stage_in.run or exists(marker):
            return _OK
        staged = self._run("stage_in", self._spec.stage_in)
        if staged.ok:
            _touch(marker)
        return staged

    def take_away(self) -> Staged:
        """Run ``stage_out`` for a training that has finished."""
        staged = self._run("stage_out", self._spec.stage_out)
        if staged.ok:
            _touch(self._job.run.uploaded_file)
        return staged

    def take_away_after(self, decision: Decision) -> None:
        """``stage_out`` for a failure, if it is wanted: tried once, and nothing depends on it."""
        stage = self._spec.stage_out
        failed = decision.action in {Action.STOP, Action.HOLD} or decision.budget != "none"
        if stage.after_failure and stage.run and failed and decision.cause != "user_cancelled":
            self._once("stage_out", stage, 1, "failed")

    def _run(self, name: str, stage: StageIn | StageOut) -> Staged:
        tries = 0
        while True:
            tries += 1
            end = self._once(name, stage, tries, "completed")
            if end.exit_code == 0 and not end.gone:
                return _OK
            if end.gone or not self._is_ours():
                return Staged(False, None, end.exit_code or 1)
            if end.stop is not None:
                return Staged(False, decide_between_launches(self._record, self._spec, end.stop), end.exit_code)
            if end.diagnosis is None:
                return Staged(False, None, end.exit_code)
            if not self._may_try_again(end.diagnosis, end.exit_code, tries):
                return Staged(False, self._give_up(name, end.diagnosis, end.exit_code), end.exit_code)
            delay = min(self._spec.retry.delay_s, _FIRST_PAUSE_S if tries == 1 else self._spec.retry.delay_s)
            again = Decision(Action.RESTART_IN_PLACE, RunState.RUNNING, end.diagnosis.cause, "", delay_s=delay)
            after = self._out.pause(again)
            if after is not again:
                return Staged(False, after, end.exit_code)

    def _may_try_again(self, diagnosis: Diagnosis, code: int, tries: int) -> bool:
        cause = CAUSES.get(diagnosis.cause, CAUSES["unknown"])
        retry = retry_for(self._spec.retry, cause.name)
        first = retry.causes.get(cause.name, {}).get("first") or cause.first_rung
        hopeless = first in _NEVER_HERE or diagnosis.action == "stop" or code == DO_NOT_RETRY
        return not hopeless and tries <= min(_RETRIES, retry.in_place)

    def _give_up(self, name: str, diagnosis: Diagnosis, code: int) -> Decision:
        self._record.diagnosed(-1, diagnosis)
        if name == "stage_out":
            again = f"`slurmtrain release {self._job.run.run_id}` tries the upload alone"
            reason = f"the training has finished, but {diagnosis.sentence}; {again}"
            decision = Decision(Action.HOLD, RunState.HELD, diagnosis.cause, reason)
        else:
            run = self._record.read_run()
            decision = decide_ending(run, self._spec, diagnosis, exit_code=code, script_alive=False)
        say(f"decision: {decision.action.value} ({decision.reason})")
        return decision

    def _diagnose(self, name: str, stage: StageIn | StageOut, code: int, log: LogRange) -> Diagnosis:
        found = diagnose_log(self._job.run, Facts(state="FAILED", exit_code=code), log)
        if code == TIMED_OUT:
            words = f"{name} took longer than its time limit of {stage.time_limit_s} s"
        else:
            words = f"{name} failed with exit code {code}"
        what = f": {found.sentence}" if found.sentence and found.cause != "unknown" else ""
        say(f"{words}{what}")
        return replace(found, sentence=f"{words}{what}")

    def _is_ours(self) -> bool:
        seen = look_patiently(self._slurm, self._job.job_id)
        return seen is not None and is_ours(seen, self._job.restart_count)

    # -- one try -----------------------------------------------------------------------------------------------------

    def _once(self, name: str, stage: StageIn | StageOut, tries: int, result: str) -> _End:
        say(f"=== attempt {self._attempt.number} {name}, try {tries} ===")
        self._record.stage_started(name, tries)
        started, offset = time.time(), _size(self._job)
        process = self._start(name, result)
        code, why = self._wait(name, stage, process) if process is not None else (127, None)
        stop = why if isinstance(why, StopReason) else None
        failed = code != 0 and why is None
        log = LogRange(self._job.log_file, offset, _size(self._job))
        found = self._diagnose(name, stage, code, log) if failed else None
        self._record.stage_ended(
            name,
            exit_code=code,
            duration_s=time.time() - started,
            stop_reason=stop.reason if stop else None,
            diagnosis=found,
        )
        return _End(code, stop, gone=why == "gone", diagnosis=found)

    def _start(self, name: str, result: str) -> subprocess.Popen[bytes] | None:
        newest = find_newest(self._job.run.path, self._spec.checkpoint)
        folder = checkpoint_dir(self._job.run.path, self._spec.checkpoint)
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        values = {
            "SLURMTRAIN_STAGE": name,
            "SLURMTRAIN_RESULT": result if name == "stage_out" else "",
            "SLURMTRAIN_ATTEMPT": str(self._attempt.number),
            "SLURMTRAIN_LAUNCH_KEY": f"{self._attempt.number}.{name}",  # a later agent finds what this one left running
            "SLURMTRAIN_CHECKPOINT_DIR": str(folder),
            "SLURMTRAIN_RESUME_FROM": str(newest.path) if newest else "",
        }
        command = ["/bin/bash", str(self._job.run.stage_script(name))]
        try:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env={**self._env, **values}, start_new_session=True
            )
        except OSError as exc:
            say(f"cannot start {command[1]}: {exc}")
            return None

    def _wait(self, name: str, stage: StageIn | StageOut, process: subprocess.Popen[bytes]) -> tuple[int, _Why]:
        """Its exit code, and why it was ended if it was."""
        limit = time.monotonic() + stage.time_limit_s
        stop: StopReason | None = None
        while (code := process.poll()) is None:
            if self._out.fence.closed or self._out.watch.ended_by_slurm:
                return self._end(process), "gone"
            stop = stop or self._out.watch.check()
            if stop is not None and self._is_due(name, stop):
                say(f"{name} is ended: {stop.detail or stop.reason}")
                return self._end(process), stop
            if time.monotonic() >= limit:
                self._end(process)
                return TIMED_OUT, None
            self._out.wake.sleep(min(1.0, self._out.watch.seconds_to_next_look()))
        # A signal that nobody has looked into yet may be what ended it.
        if code != 0 and stop is None and self._out.watch.signalled:
            stop = self._out.watch.check()
        return 128 - code if code < 0 else code, stop if code else None

    @staticmethod
    def _is_due(name: str, stop: StopReason) -> bool:
        """A reason to stop ends a stage_in at once; a stage_out has until the last moment, but for a person's wish."""
        if name == "stage_in" or stop.reason == "user" or stop.deadline is None:
            return True
        return time.time() >= stop.deadline

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """TERM, grace, KILL to all that it started, on all nodes; never 0."""
        for number, seconds in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        with contextlib.suppress(SlurmtrainError):
            raw = self._env.get("SLURM_JOB_ID", "")
            if not self._out.watch.ended_by_slurm and not self._out.fence.closed:
                end_leftovers(self._job.job_id, raw, self._slurm, keep=self._out.companion_steps())
        return process.returncode or 128 + int(signal.SIGTERM)


def _size(job: JobContext) -> int:
    try:
        return job.log_file.stat().st_size
    except OSError:
        return 0


def _touch(path: os.PathLike[str]) -> None:
    """A marker that cannot be written costs a repetition, nothing more."""
    with contextlib.suppress(OSError), open(path, "w") as stream:
        stream.write(f"{time.time():.0f}\n")
