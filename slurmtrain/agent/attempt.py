"""One attempt inside the job: gate, companions, launches with restart in place, and how the job is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Mapping
from types import FrameType

from slurmtrain.agent.comeback import learn, place_of
from slurmtrain.agent.companions import CompanionStep
from slurmtrain.agent.fence import Fence
from slurmtrain.agent.gate import Admitted, Settled, TurnedAway, pass_gate
from slurmtrain.agent.hang import HUNG_GRACE_S, HangWatch, Silence, wait_for_stacks
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.launch import LaunchProcess, end_launch, kill_launch, start_launch
from slurmtrain.agent.leave import carry_out, leave, leave_with
from slurmtrain.agent.leftovers import end_leftovers
from slurmtrain.agent.log_watch import LogWatch
from slurmtrain.agent.metric_watch import MetricWatch
from slurmtrain.agent.nodes import NodeWatch
from slurmtrain.agent.notices import Notices
from slurmtrain.agent.processes import find_launch_processes, signal_number, some_listen
from slurmtrain.agent.record import Record
from slurmtrain.agent.releasing import release_all
from slurmtrain.agent.resume import choose_checkpoint, roll_back_after
from slurmtrain.agent.saving import LOOK_BEFORE_S, SaveWatch
from slurmtrain.agent.say import say
from slurmtrain.agent.scene_request import ENDED_S
from slurmtrain.agent.scenes import Scenes
from slurmtrain.agent.shipper import ShipperProcess
from slurmtrain.agent.stages import Outlook, Staged, Stages
from slurmtrain.agent.stops import StopReason, StopWatch, is_ours, look_patiently
from slurmtrain.agent.takeover import clear_the_way, is_restart_decided, number_of_next_launch
from slurmtrain.agent.unrecorded import train_without_record
from slurmtrain.agent.verdict import (
    LaunchEnd,
    decide_between_launches,
    find_left_end,
    judge_launch,
    read_launch_end,
    write_down,
)
from slurmtrain.agent.wake import Wake
from slurmtrain.checkpoints.find import checkpoint_dir, find_newest
from slurmtrain.core.components import task_offsets
from slurmtrain.core.decision import Action, Decision, RunState
from slurmtrain.errors import SlurmtrainError, StoreError
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir

_FENCE_INTERVAL_S = 2.0


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
        self._raw_job_id = env.get("SLURM_JOB_ID", "")
        self._spec = job.plan.spec
        self._watch = StopWatch(job, slurm, NodeWatch(job, slurm, record.node_noticed, self._can_continue))
        self._fence = Fence(job.run, attempt.number, _FENCE_INTERVAL_S)
        self._wake = Wake()
        self._companions = CompanionStep(job, attempt, slurm, env)
        self._shipper = ShipperProcess(job, attempt, env)
        outlook = Outlook(self._watch, self._fence, self._wake, self._pause, self._companions.steps)
        self._scenes = Scenes(job, attempt, self._companions, record, env, lambda: self._watch.signalled)
        self._stages = Stages(job, attempt, slurm, record, env, outlook)

    def run(self, number: int, left: LaunchEnd | None = None) -> int:
        """Stage in, launch, judge, restart… from launch ``number`` on, stage out; the batch script's exit code.

        ``left`` is launch ``number`` itself, which ended before the agent before died: it is judged first.
        """
        self._listen()
        try:
            if self._job.run.is_done() and self._job.run.misses_upload(self._spec):
                return self._finish_upload()
            if left is None and not (staged := self._stages.bring_in()).ok:
                return self._leave_stage(staged)
            while True:
                end = left if left is not None else self._run_launch(number)
                left = None
                decision = None if self._fence.closed else judge_launch(self._job, end, self._slurm, self._record)
                if not self._fence.closed:
                    self._scenes.after(end, decision)
                if decision is not None:
                    decision = self._restart_or_leave(decision, end)
                    self._scenes.wait(briefly=decision is not None and decision.action is Action.RESTART_IN_PLACE)
                if decision is None:
                    # Where slurmd is dead nobody else ends its ranks.
                    kill_launch(end.launch, self._raw_job_id, self._attempt.number)
                    self._companions.await_end(0.0 if self._fence.closed else ENDED_S)
                    return end.own_code
                if decision.action is Action.COMPLETE and self._job.run.misses_upload(self._spec):
                    self._job.run.mark_done(self._attempt.number)
                    return self._finish_upload()
                if decision.action is not Action.RESTART_IN_PLACE:
                    self._stages.take_away_after(decision)
                    return leave(self._job, self._attempt, decision, end, self._slurm, self._record)
                number += 1
        finally:
            self._companions.end()
            self._shipper.end()

    def _finish_upload(self) -> int:
        """The training has finished, here or in an earlier attempt: whatever happens now, it is not started again."""
        staged = self._stages.take_away()
        if not staged.ok:
            return self._leave_stage(staged)
        done = Decision(
            Action.COMPLETE, RunState.COMPLETED, "no_failure", "the training and its stage_out have finished"
        )
        return leave_with(self._job, self._attempt, done, -1, 0, self._slurm, self._record)

    def _leave_stage(self, staged: Staged) -> int:
        if staged.decision is None:
            return staged.exit_code
        args = (self._job, self._attempt, staged.decision, -1, staged.exit_code)
        return leave_with(*args, self._slurm, self._record)

    def _listen(self) -> None:
        def on_signal(number: int, _frame: FrameType | None) -> None:
            self._watch.on_signal(number)

        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, on_signal)

    # -- one launch --------------------------------------------------------------------------------------------------

    def _run_launch(self, number: int) -> LaunchEnd:
        with contextlib.suppress(OSError):
            self._attempt.stop_file.unlink()  # before companions start, who would take it for a request
        self._companions.ensure_running()
        self._shipper.ensure_running()
        newest = choose_checkpoint(self._job.run, self._spec.checkpoint, self._record.set_aside)
        resume = f", resumes from {newest.path.name}" if newest else ""
        where = f"job {self._job.job_id} on {self._job.nodes}"
        say(f"=== attempt {self._attempt.number} launch {number} {where}{resume} ===")
        launch = start_launch(self._job, self._attempt, number, newest.path if newest else None, self._env)
        log_file = os.path.relpath(launch.log_file, self._job.run.path)
        if launch.per_node:
            say(f"the output of each node is in {os.path.relpath(launch.folder or '', self._job.run.path)}/node-*.log")
        self._scenes.started(launch)
        self._record.launch_started(number, log_file, launch.log_offset, newest)
        if number == 0:
            learn(self._job, place_of(self._env), self._watch.at_start, self._record)
        stop, code = self._wait(launch)
        primary_done, resumed_from = self._primary_is_done(launch), newest.path if newest else None
        end = read_launch_end(
            launch, stop, code, resumed_from, primary_done=primary_done,
            offsets=task_offsets(self._spec, self._job.nodes), signalled_at=self._watch.hear_out(code),
        )  # fmt: skip
        signalled = self._watch.signalled or self._watch.ended_by_slurm
        write_down(self._job, self._attempt, end, primary_done=primary_done, signalled=signalled)
        return end

    def _wait(self, launch: LaunchProcess) -> tuple[StopReason | None, int]:
        """Wait for the launch's end; ask it to stop when there is a reason, end it when it does not listen or hangs."""
        stop: StopReason | None = None
        metrics = MetricWatch(self._job, launch)
        checkpoints = checkpoint_dir(self._job.run.path, self._spec.checkpoint)
        notices = Notices(self._job, self._attempt, launch.number, self._record)
        log = LogWatch(launch, self._attempt.launch(launch.number), self._record)
        saves, life = SaveWatch(checkpoints), HangWatch(self._spec.hang, launch, checkpoints)
        while (code := launch.poll()) is None:
            if self._fence.closed:
                say("a later attempt of the run has begun: this one ends itself and decides nothing")
                return stop, kill_launch(launch, self._raw_job_id, self._attempt.number)
            if stop is None and (stop := self._watch.check() or metrics.check()) is not None:
                self._ask_to_stop(launch, stop)
            if stop is not None and self._is_over(stop, saves):
                say(f"the training did not leave by itself: ending it ({stop.reason})")
                left = stop.last + 2.0 - time.time() if stop.last is not None else stop.grace_s
                return stop, self._end(launch, min(stop.grace_s, max(1.0, left)))
            if stop is None:
                if (silence := life.look()) is not None:
                    return None, self._end_hung(launch, silence)
                notices.look()
            if self._primary_is_done(launch):
                self._end(launch, float(self._spec.stop.grace_s))
                return stop, 0
            self._companions.look()
            self._scenes.look()
            log.look()
            self._shipper.ensure_running()
            if why := self._companions.find_unheard_end(self._key(launch)):
                say(f"{why}: ending the launch")
                launch.unheard = why
                launch.cut_log()
                return stop, self._end(launch, float(self._spec.stop.grace_s)) or 1  # 0 would be success
            self._wake.sleep(self._seconds_to_sleep(stop))
        return stop, code

    def _is_over(self, stop: StopReason, saves: SaveWatch) -> bool:
        """Whether a launch that was asked to leave must be ended; one that writes a checkpoint gets what is left."""
        now = time.time()
        if stop.deadline is None or now < stop.deadline - LOOK_BEFORE_S:
            return False
        saving = saves.in_progress()
        return now >= stop.deadline and not (saving and stop.last is not None and now < stop.last)

    def _end_hung(self, launch: LaunchProcess, silence: Silence) -> int:
        """Take the stacks of all ranks, then end the launch."""
        missing = "given no sign of life" if silence.nothing_new == "sign of life" else "made no new step"
        say(f"the training has {missing} for {silence.seconds:.0f} s: its ranks' stacks are taken and they are ended")
        launch.silent_s, launch.nothing_new = silence
        launch.cut_log()
        self._scenes.hung(launch)
        wait_for_stacks(launch, self._companions.ask_for_stacks(launch.folder))
        return self._end(launch, HUNG_GRACE_S) or 1

    def _seconds_to_sleep(self, stop: StopReason | None) -> float:
        if stop is None:
            return self._watch.seconds_to_next_look()
        return 1.0 if stop.deadline is None else max(0.05, min(1.0, stop.deadline - time.time()))

    def _ask_to_stop(self, launch: LaunchProcess, stop: StopReason) -> None:
        say(f"asking the training to save and leave: {stop.detail or stop.reason}")
        with contextlib.suppress(OSError):
            self._attempt.stop_file.write_text(stop.reason + "\n")
        self._companions.ask_to_stop()
        if stop.reason == "user":
            self._record.stop_noticed(self._job)
        self._record.stop_sent(launch.number, stop.reason, stop.deadline, stop.detail)
        self._scenes.warned(launch, stop)

    def _can_continue(self) -> bool:
        """Whether leaving early costs little: there is a checkpoint, or a process that would save one if asked."""
        if find_newest(self._job.run.path, self._spec.checkpoint) is not None:
            return True
        number = signal_number(self._spec.stop.signal)
        ranks = find_launch_processes(self._raw_job_id, self._attempt.number)
        return number is not None and some_listen(ranks, number)

    def _end(self, launch: LaunchProcess, grace_s: float) -> int:
        return end_launch(launch, self._job.job_id, self._find_step(launch), self._slurm, grace_s)

    def _find_step(self, launch: LaunchProcess) -> str | None:
        """Slurm's step of the launch: from its processes here, else from Slurm, where only other nodes have some."""
        key = self._key(launch)
        if step := next((p.step for p in find_launch_processes(self._raw_job_id) if p.launch == key), None):
            return step
        try:
            steps = self._slurm.steps(self._job.job_id)
        except SlurmtrainError:
            return None
        others = self._companions.steps()
        return max((step for step in steps if step.isdigit() and step not in others), key=int, default=None)

    def _key(self, launch: LaunchProcess) -> str:
        return f"{self._attempt.number}.{launch.number}"

    def _primary_is_done(self, launch: LaunchProcess) -> bool:
        """``success: primary``: rank 0 ended well, which its wrapper tells by a file."""
        return self._spec.success == "primary" and exists(self._attempt.launch(launch.number) / "primary-done")

    # -- between two launches ----------------------------------------------------------------------------------------

    def _restart_or_leave(self, decision: Decision, end: LaunchEnd) -> Decision | None:
        """The decision after the wait for the next launch, in which things may change; None: not decided here."""
        roll_back_after(decision, end.resumed_from, self._job.run, self._spec.checkpoint, self._record)
        if decision.action is not Action.RESTART_IN_PLACE:
            return decision
        self._record.decided(end.launch.number, decision)
        if not self._clear(end.launch):
            why = f"{decision.reason}; but the launch before cannot be ended here"
            return dataclasses.replace(decision, action=Action.REQUEUE, state=RunState.PENDING, reason=why)
        return self._pause(decision)

    def _clear(self, launch: LaunchProcess) -> bool:
        """srun that ended by itself has ended its step; one that was killed has not. Then all nodes give back."""
        if launch.was_killed or find_launch_processes(self._raw_job_id):
            say("the launch left processes behind: ending them")
            keep = self._companions.steps()
            if not end_leftovers(self._job.job_id, self._raw_job_id, self._slurm, keep=keep):
                return False
        return release_all(self._job, self._env, launch.started_at)

    def _pause(self, decision: Decision) -> Decision | None:
        """Wait before the next launch. A reason to stop that comes meanwhile makes the launch pointless."""
        if decision.delay_s:
            say(f"waiting {decision.delay_s} s before the next try")
        deadline = time.monotonic() + decision.delay_s
        while True:
            if self._fence.closed or self._watch.ended_by_slurm:
                say("Slurm has ended this execution: no further launch")
                return None
            if (stop := self._watch.check()) is not None:
                return self._stop_between_launches(stop)
            left = deadline - time.monotonic()
            if left <= 0 and not self._watch.signalled:
                return decision
            self._wake.sleep(min(max(left, 0.2), 1.0, self._watch.seconds_to_next_look()))

    def _stop_between_launches(self, stop: StopReason) -> Decision | None:
        seen = look_patiently(self._slurm, self._job.job_id)
        if seen is None or not is_ours(seen, self._job.restart_count):
            return None
        if stop.reason == "user":
            self._record.stop_noticed(self._job)
        return decide_between_launches(self._record, self._spec, stop)


def run_attempt(job: JobContext, slurm: SlurmClient, env: Mapping[str, str], *, takes_over: bool) -> int:
    """Gate and launches; the batch script's exit code. ``takes_over``: an agent of this batch script ran and died."""
    journal = JournalWriter(job.run.journal, f"agent-{job.job_id}-{job.restart_count}-{job.host}-{os.getpid()}")
    if takes_over and not clear_the_way(job, slurm, env):
        return 1
    try:
        passed = pass_gate(job, slurm, journal)
    except (StoreError, OSError) as exc:
        return train_without_record(job, slurm, env, str(exc))
    if isinstance(passed, TurnedAway):
        say(passed.reason)
        return passed.exit_code
    record = Record(journal, job.run.journal, passed.attempt.number)
    if isinstance(passed, Settled):
        return carry_out(job, passed.attempt, passed.decision, 1, slurm, record)
    return _run_launches(job, passed, slurm, record, env)


def _run_launches(job: JobContext, passed: Admitted, slurm: SlurmClient, record: Record, env: Mapping[str, str]) -> int:
    first, left = 0, None
    if passed.recovered:
        state = record.read_run()
        first = number_of_next_launch(state, passed.attempt)
        if not is_restart_decided(state, passed.attempt, first - 1):
            left = find_left_end(job, passed.attempt, first - 1)
    try:
        return AttemptRunner(job, passed.attempt, slurm, record, env).run(first - 1 if left else first, left)
    except SlurmtrainError as exc:
        say(f"{exc}; `slurmtrain watch` decides what follows")
        return 1
