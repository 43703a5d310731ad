"""A companion and the scenes of its node: when the agent asks for one, and when Slurm ends the step.

After Slurm's TERM nobody can ask any more: the agent may be gone, and no srun starts. So the companion takes the scene
of the launch that ran by itself, unless the agent has said that the launch is dealt with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from slurmtrain.agent.companion_events import SCENE, tell
from slurmtrain.agent.job import JobContext
from slurmtrain.agent.processes import Process, launch_number, read_environ
from slurmtrain.agent.say import say
from slurmtrain.agent.scene_request import make_request
from slurmtrain.agent.scene_words import STARTED, Word
from slurmtrain.evidence.collector import ENDED
from slurmtrain.evidence.process import SceneProcess
from slurmtrain.store.publish import exists
from slurmtrain.store.rundir import AttemptDir


class CompanionScenes:
    """The scenes of one attempt on one node. ``find`` gives the launch's processes here."""

    def __init__(
        self, job: JobContext, attempt: AttemptDir, node: str, find: Callable[[], list[Process]], *, batch_host: bool
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._node = node
        self._find = find
        self._batch_host = batch_host
        self._environ: dict[str, str] = {}
        self._seen = -1  # the launch that has this environment
        self._launch = -1  # the newest launch that has run here
        self._settled = -1  # up to this launch the agent has said its word
        self._process: SceneProcess | None = None
        self._of = ""
        self._waiting: list[Word] = []

    @property
    def running(self) -> bool:
        """While it is True the companion should stay."""
        return self._process is not None

    def see(self, processes: Iterable[Process]) -> None:
        """Remember the newest launch and its environment: when its ranks are dead nobody can be asked for it."""
        for process in processes:
            number = launch_number(process.launch)
            if number > self._seen:
                self._seen, self._environ = number, read_environ(process.pid)
                self._launch = max(number, self._launch)

    def hear(self, words: Iterable[Word]) -> None:
        for word in words:
            if word.ending == STARTED:
                self._launch = max(self._launch, word.launch)
                continue
            self._settled = max(self._settled, word.launch)
            if word.ending:
                self._waiting.append(word)
        self.look()

    def on_term(self) -> None:
        """Slurm ends the step."""
        ranks = self._find()
        self.see(ranks)
        if self._launch < 0:
            self._launch = self._find_unended()
        if self._launch > self._settled:
            self._settled = self._launch
            self._begin(Word(self._launch, ENDED), ranks)

    def _find_unended(self) -> int:
        """A launch so short that nobody here has seen it; -1 for none."""
        newest = -1
        while exists(self._attempt.launch(newest + 1)):
            newest += 1
        return -1 if newest < 0 or exists(self._attempt.launch_exit(newest)) else newest

    def look(self) -> None:
        """Tell the agent of a scene that is taken; begin the next one that it wants."""
        if self._process is not None:
            why = self._process.poll()
            if why is None:
                return
            self._process = None
            tell(SCENE, self._of, self._node)
            if why:
                _complain(why)
        if self._waiting:
            ranks = self._find()
            self.see(ranks)
            self._begin(self._waiting.pop(0), ranks)

    def _begin(self, word: Word, processes: list[Process]) -> None:
        if not self._job.plan.spec.scene.enabled:
            return
        own = [p for p in processes if launch_number(p.launch) == word.launch]
        environ = self._environ_of(word.launch)
        request = make_request(
            self._job, self._attempt.number, word, self._node, own, environ, batch_host=self._batch_host
        )
        self._of = f"{self._attempt.number}.{word.launch}"
        try:
            self._process = SceneProcess(self._job.run.agent, request)
        except OSError as exc:
            _complain(f"it cannot be started ({exc.strerror or exc})")
            tell(SCENE, self._of, self._node)

    def _environ_of(self, launch: int) -> dict[str, str]:
        """What its ranks were given; of one that nobody here has seen, what the job was given, which is most of it."""
        if self._seen == launch and self._environ:
            return self._environ
        numbers = {"SLURMTRAIN_ATTEMPT": str(self._attempt.number), "SLURMTRAIN_LAUNCH": str(launch)}
        return {**os.environ, **numbers, "SLURMTRAIN_LAUNCH_KEY": f"{self._attempt.number}.{launch}"}


def _complain(why: str) -> None:
    """In the companions' own log."""
    say(f"no scene of this node: {why}")
