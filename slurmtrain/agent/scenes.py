"""The agent and the scenes of its launches: asked of all nodes, waited for within the budget, written down.

Where no companion lives, the agent takes the scene of the batch host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from slurmtrain.agent.companions import CompanionStep
from slurmtrain.agent.job import JobContext, count_nodes
from slurmtrain.agent.launch import LaunchProcess
from slurmtrain.agent.processes import find_launch_processes
from slurmtrain.agent.record import Record
from slurmtrain.agent.say import say
from slurmtrain.agent.scene_request import make_request, scene_budget
from slurmtrain.agent.scene_words import STARTED, Word
from slurmtrain.agent.stops import StopReason
from slurmtrain.agent.verdict import LaunchEnd
from slurmtrain.checkpoints.pin import unpin
from slurmtrain.core.decision import Action, Decision
from slurmtrain.evidence.collector import ENDED, FAILED, HUNG, WARNED
from slurmtrain.evidence.manifest import scene_dir
from slurmtrain.evidence.process import SceneProcess
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir

_WARNINGS = frozenset({"time_limit", "preempted"})
_LOOK_S = 0.2
_HEAD_START_S = 1.0  # for what looks at processes, before the next launch has some


class Scenes:
    """The scenes of one attempt. Nothing here raises, and nothing waits longer than the budget.

    A launch in place waits for a head start only: its nodes stay, and the rest is taken beside it.
    """

    def __init__(
        self,
        job: JobContext,
        attempt: AttemptDir,
        companions: CompanionStep,
        record: Record,
        env: Mapping[str, str],
        hurry: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hurry = hurry  # Slurm has something to say: nothing is waited for any longer
        self._job = job
        self._attempt = attempt
        self._companions = companions
        self._record = record
        self._env = env
        self._options = job.plan.spec.scene
        self._begun: tuple[LaunchProcess, str, float] | None = None  # launch, ending, when
        self._own: SceneProcess | None = None
        self._answers_before = 0
        self._taken: set[int] = set()  # launches

    def started(self, launch: LaunchProcess) -> None:
        self._companions.send(Word(launch.number, STARTED))

    def after(self, end: LaunchEnd, decision: Decision | None) -> None:
        """The launch has ended: begin its scene, unless it went well, or was asked to end, or has one.

        ``decision`` is None where Slurm has ended the job: then the companions do it by themselves.
        """
        self.wait()
        launch, asked = end.launch, end.stop is not None and end.stop.reason != "metric"
        left = end.stop is None and end.exit_code == 0  # it saved and left for somebody's signal
        if decision is None:
            if not self._companions.alive and launch.number not in self._taken:
                self._begin(launch, ENDED, "")
                self.wait()
        elif decision.action is Action.COMPLETE or asked or left or launch.number in self._taken:
            self._companions.send(Word(launch.number))
            if decision.action is Action.COMPLETE:
                unpin(self._job.run.path, self._job.plan.spec.checkpoint)
        else:
            self._begin(launch, FAILED, decision.cause)

    def warned(self, launch: LaunchProcess, stop: StopReason) -> None:
        """The training is asked to leave before Slurm's own end."""
        if stop.reason in _WARNINGS:
            self._begin(launch, WARNED, stop.reason)

    def hung(self, launch: LaunchProcess) -> None:
        """The ranks still live, and hang: take it before they are ended."""
        self._begin(launch, HUNG, "")
        self.wait()

    def wait(self, *, briefly: bool = False) -> None:
        """Until all nodes have taken it, or the budget is over; then it is written down.

        ``briefly``: for its head start at most; ``look`` writes it down when it is over.
        """
        while self._begun is not None and not self.look():
            _, ending, begun = self._begun
            hurried = self._hurry() and ending != ENDED
            if briefly and (hurried or time.monotonic() - begun >= _HEAD_START_S):
                return
            if hurried:
                self._write_down()
            else:
                time.sleep(_LOOK_S)

    def look(self) -> bool:
        """Write down a scene that is taken; whether none is being taken any more. Cheap: called at each turn."""
        if self._begun is not None:
            launch, ending, begun = self._begun
            if self._missing(launch) and time.monotonic() < begun + scene_budget(self._options, ending):
                return False
            self._write_down()
        return True

    def _begin(self, launch: LaunchProcess, ending: str, cause: str) -> None:
        if not self._options.enabled:
            return
        self.wait()
        self._taken.add(launch.number)
        self._begun = (launch, ending, time.monotonic())
        self._answers_before = self._companions.count_scenes(self._key(launch))
        if not self._companions.alive:
            self._take_here(launch, ending, cause)
        else:
            self._companions.send(Word(launch.number, ending, cause))

    def _take_here(self, launch: LaunchProcess, ending: str, cause: str) -> None:
        """Of the batch host alone."""
        ranks = find_launch_processes(self._env.get("SLURM_JOB_ID", ""), self._attempt.number)
        word = Word(launch.number, ending, cause)
        request = make_request(
            self._job, self._attempt.number, word, self._job.host, ranks, launch.environ, batch_host=True
        )
        try:
            self._own = SceneProcess(self._job.run.agent, request)
        except OSError as exc:
            say(f"no scene of the failure can be taken: {exc.strerror or exc}")
            self._begun = None

    def _missing(self, launch: LaunchProcess) -> bool:
        return self._own.poll() is None if self._own is not None else self._answers(launch) < self._of

    def _answers(self, launch: LaunchProcess) -> int:
        return self._companions.count_scenes(self._key(launch)) - self._answers_before

    @property
    def _of(self) -> int:
        return sum(count_nodes(self._env))

    def _key(self, launch: LaunchProcess) -> str:
        return f"{self._attempt.number}.{launch.number}"

    def _write_down(self) -> None:
        if self._begun is None:
            return
        (launch, ending, begun), self._begun = self._begun, None
        seconds = time.monotonic() - begun
        folder = scene_dir(self._attempt.launch(launch.number))
        path = os.path.relpath(folder, self._job.run.path)
        if self._own is not None:
            why, self._own = self._own.poll(), None
            nodes = int(why == "")
            if why:
                say(f"no scene of {self._job.host}: {why}")
        else:
            nodes = min(self._of, self._answers(launch))
        if nodes or exists(folder):
            self._record.scene_taken(launch.number, path, ending, nodes=nodes, of=self._of, seconds=seconds)
            say(f"the scene of launch {launch.number} is kept in {folder} ({nodes} of {self._of} nodes)")
