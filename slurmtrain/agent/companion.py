"""The companion: one small step per attempt, one process on each node, beside the training.

It reports its node, keeps a heartbeat, and hands the stop signal to the rank processes by pid: when the agent asks
for it (USR2 through srun), and when Slurm itself tells the steps to end (TERM: preemption, time limit, cancel), which
a rank behind a ``bash -c`` or torchrun would never hear of. It ends the ranks of an attempt that is fenced off, and
those whose slurmstepd is gone, and tells the agent of the latter by a line on its output.

Where the ranks say how far they are (``agent.beats``), its own file on shared storage tells that, too.

What it costs: one file written every minute, one look at a name in the run directory every 15 s; between them it
sleeps, and once a second looks at nothing but its own flags (and, beside the agent, at the agent's process).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from slurmtrain.agent.beats import NodeBeats, remove_old_beats
from slurmtrain.agent.companion_events import TOLD_TO_END, tell
from slurmtrain.agent.companion_scene import CompanionScenes
from slurmtrain.agent.fence import Fence
from slurmtrain.agent.job import JobContext, read_job_context
from slurmtrain.agent.processes import (
    Process,
    end_processes,
    find_companions,
    find_launch_processes,
    launch_number,
    newest_launch,
    send_stop_signal,
    signal_number,
    start_ticks,
)
from slurmtrain.agent.scene_words import Listener
from slurmtrain.agent.stacks import dump_stacks, requested_at
from slurmtrain.agent.tasks import TaskWatch
from slurmtrain.agent.wake import Wake
from slurmtrain.errors import StoreError
from slurmtrain.store.publish import exists, replace, to_json
from slurmtrain.store.rundir import AttemptDir

HEARTBEAT_S = 60.0
FENCE_S = 15.0
TASKS_S = 5.0  # between looks at the tasks of the launch on this node
_TICK_S = 1.0
_STDIN = 0
_LINGER_S = 20.0  # after TERM, at most this long for a scene when the ranks are gone


class Companion:
    """One node's companion."""

    def __init__(self, job: JobContext, attempt: AttemptDir, env: Mapping[str, str]) -> None:
        self._job = job
        self._attempt = attempt
        self._node = env.get("SLURMD_NODENAME") or socket.gethostname()
        self._raw_job_id = env["SLURM_JOB_ID"]
        self._step = env.get("SLURM_STEP_ID", "")
        self._signal = signal_number(job.plan.spec.stop.signal)
        self._agent = _AgentProcess(env, self._node)
        self._fence = Fence(job.run, attempt.number, FENCE_S)
        self._tasks = TaskWatch(self._ranks, TASKS_S)
        self._beats = NodeBeats(self._node, self._raw_job_id)
        self._words = Listener(_STDIN)
        self._scenes = CompanionScenes(job, attempt, self._node, self._ranks, batch_host=self._agent.is_here)
        self._asked = False  # by the agent: to stop the training, or for the stacks of its ranks
        self._dumped: set[str] = set()  # launches whose stacks were taken
        self._stop_wanted = False
        self._stop_launch = ""  # the one that is to stop
        self._terminated_at: float | None = None
        self._term_unmarked = self._term_untold = False
        self._marked = ""  # the folder of the ranks that were told of the last TERM
        self._dismissed = False
        self._wake = Wake()

    def run(self) -> int:
        """Live until the agent ends us, or until Slurm did and the ranks are gone."""
        signal.signal(signal.SIGUSR2, self._on_request)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGUSR1, self._on_dismissal)
        self._asked |= exists(self._attempt.stop_file)  # the request may have come before the handler
        if not take_over_node(self._raw_job_id):
            return 0
        self._end_ghosts()
        remove_old_beats()
        self._report("here")
        beat = time.monotonic()
        delivered: set[int] = set()
        while True:
            self._mark_term()
            if not self._agent.alive:
                self._fence.hurry()
            if self._fence.closed:
                return self._end_as_ghost()
            if self._dismissed:
                return self._leave_dismissed()
            self._see_to_lost_tasks()
            self._scenes.hear(self._words.read())
            if self._asked:
                self._asked = False
                self._hear_request()
            if self._stop_wanted:
                delivered |= self._deliver(delivered)
            if self._terminated_at is not None:
                self._hear_term()  # after the signal: who learns of it thereby may be about to exit already
            if self._terminated_at is not None and self._may_leave(self._terminated_at):
                self._report("left")
                return 0
            if time.monotonic() - beat >= HEARTBEAT_S:
                beat = time.monotonic()
                self._report("here")
            self._wake.sleep(_TICK_S, self._words.fileno)

    def _mark_term(self) -> None:
        """For a launch that had not been seen yet when the signal came."""
        if self._term_unmarked:
            self._ranks()
            if self._beats.folder not in ("", self._marked):
                self._beats.tell_term()
            self._term_unmarked = False

    def _hear_term(self) -> None:
        if self._term_untold:
            self._term_untold = False
            tell(TOLD_TO_END, newest_launch(self._ranks()) or f"{self._attempt.number}.0", self._node)
        self._scenes.on_term()

    def _hear_request(self) -> None:
        """The agent wants stacks, or the ranks to stop; or a person did `scancel -s USR2`: the ranks have heard it."""
        if self._dump_stacks():
            return
        if exists(self._attempt.stop_file):
            self._stop_wanted, self._stop_launch = True, ""
        elif self._agent.is_here:
            self._agent.tell()
        elif ranks := self._ranks():  # or the agent's file is not to be seen here yet
            self._stop_wanted, self._stop_launch = True, newest_launch(ranks)

    def _dump_stacks(self) -> bool:
        """Whether the agent had asked for the stacks of the running launch; they are then in the log."""
        ranks = self._ranks()
        key = newest_launch(p for p in ranks if p.launch not in self._dumped)
        folder = self._attempt.launch(launch_number(key))
        at = requested_at(folder) if key else None
        if at is None:
            return False
        self._dumped.add(key)
        dump_stacks(ranks, folder, self._node, at, self._beats.read(ranks))
        return True

    def _leave_dismissed(self) -> int:
        """By the agent, by a younger companion, or by a person with `scancel -s USR1`."""
        self._beats.remove()
        if not find_companions(self._raw_job_id):
            self._agent.tell()
        return self._end_as_ghost() if self._fence.look_now() else 0

    def _end_as_ghost(self) -> int:
        """A later attempt runs: what is left of this one on this node must not go on writing checkpoints."""
        end_processes(self._ranks(), signal.SIGKILL)
        self._report("ended: a later attempt runs")
        return 0

    def _see_to_lost_tasks(self) -> None:
        """Tasks without their slurmstepd: nobody hears how they end, and no signal of Slurm's reaches them."""
        for event, launch, tasks in self._tasks.look():
            end_processes(tasks, signal.SIGKILL)
            tell(event, launch, self._node)

    def _deliver(self, already: set[int]) -> set[int]:
        """Each process of the launch hears the signal once, also one that starts to listen only now."""
        if self._signal is None:
            return set()
        ranks = self._ranks()
        self._stop_launch = self._stop_launch or newest_launch(ranks)
        mine = [process for process in ranks if process.launch == self._stop_launch]
        return set(send_stop_signal(mine, self._signal, already))

    def _may_leave(self, terminated_at: float) -> bool:
        """Not while a rank lives: a grace time may be long, and Slurm sends TERM once more at its end."""
        late = time.monotonic() - terminated_at > _LINGER_S
        return not self._ranks() and (late or not self._scenes.running)

    def _ranks(self) -> list[Process]:
        found = find_launch_processes(self._raw_job_id, self._attempt.number)
        self._scenes.see(found)
        self._beats.see(found)
        return found

    def _end_ghosts(self) -> None:
        """A node that was lost and came back may still run ranks of an earlier attempt."""
        ghosts = [p for p in find_launch_processes(self._raw_job_id) if 0 <= p.attempt < self._attempt.number]
        end_processes(ghosts, signal.SIGKILL)

    def _on_request(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True

    def _on_dismissal(self, _number: int, _frame: FrameType | None) -> None:
        self._dismissed = True

    def _on_term(self, _number: int, _frame: FrameType | None) -> None:
        self._beats.tell_term()  # at once: the ranks wait a second, and a look at all processes may take as long
        self._marked = self._beats.folder
        self._stop_wanted = self._term_unmarked = self._term_untold = True
        if self._terminated_at is None:
            self._terminated_at = time.monotonic()
            self._agent.tell()

    def _report(self, status: str) -> None:
        record: dict[str, Any] = {
            "node": self._node,
            "pid": os.getpid(),
            "step": self._step,
            "status": status,
            "at": time.time(),
        }
        if status == "here":
            record |= self._beats.report(self._ranks())
        else:
            self._beats.remove()
        with contextlib.suppress(StoreError):  # a full store must not end the companion
            replace(self._attempt.nodes / f"{self._node}.json", to_json(record))


def take_over_node(job_id: str) -> bool:
    """The youngest companion of a node stays and dismisses the others: False if that is another one.

    An srun that is killed before its companions have reported leaves them to Slurm alone, and the agent, which does
    not know their step, starts others: ranks must not hear a signal from both.
    """
    others = find_companions(job_id)
    mine = (start_ticks(os.getpid()) or 0, os.getpid())
    end_processes([p for p in others if (p.start_ticks, p.pid) < mine], signal.SIGUSR1)
    return all((p.start_ticks, p.pid) < mine for p in others)


class _AgentProcess:
    """The agent, if it runs on this node: USR1 tells it that a signal came to the steps which it had not sent."""

    def __init__(self, env: Mapping[str, str], node: str) -> None:
        pid, _, host = env.get("SLURMTRAIN_AGENT", "").partition("@")
        self._pid = int(pid) if pid.isdigit() and host == node else None
        self._started = start_ticks(self._pid) if self._pid else None

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, on this node."""
        return self._pid is not None

    @property
    def alive(self) -> bool:
        """False once it is gone; True also where it runs on another node."""
        return self._pid is None or (self._started is not None and start_ticks(self._pid) == self._started)

    def tell(self) -> None:
        if self._pid and self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._pid, signal.SIGUSR1)


def run_companion(run_dir: Path, attempt: int, env: Mapping[str, str]) -> int:
    """Entry point of the step's task."""
    job = read_job_context(run_dir, env)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    return Companion(job, job.run.attempt(attempt), env).run()
