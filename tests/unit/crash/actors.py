"""Actors that run one at a time: real code in threads, single-stepped, on a clock that only the stage moves.

An actor (an agent, a watcher, a person's command) is a thread that runs until it blocks: it sleeps, Slurm takes its
time to answer, or the policy wants somebody else to go on. Each write and each Slurm command is a *point*: there the
policy may kill the actor (``Killed`` unwinds it, and no further write of it takes place) or stop it for a while
(SIGSTOP … SIGCONT) while the others and Slurm go on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

POINTS = frozenset({"write", "slurm", "slurm-after", "slurm-read", "slurm-read-after"})  # each write, each command
HAND_OVER_S = 60.0  # real seconds; an actor that runs longer without blocking hangs


class Killed(BaseException):
    """SIGKILL: raised in the actor's own thread, again and again until it has unwound."""


@dataclass(frozen=True)
class Verdict:
    """What happens to an actor at a point: ``go``, ``yield``, ``kill``, ``pause`` (for ``seconds``) or ``lose``.

    ``lose``: what Slurm has just done is done, and its reply is lost; only behind a command that changes something.
    """

    kind: str = "go"
    seconds: float = 0.0


GO = Verdict()
Policy = Callable[["Actor", str, str], Verdict]


class ReplyLost(Exception):
    """For whoever plays Slurm: the actor is not told that its command was taken."""


class Actor:
    """One process of ours."""

    def __init__(self, stage: Stage, name: str, role: str, host: str, pid: int, body: Callable[[], Any]) -> None:
        self.stage, self.name, self.role, self.host, self.pid, self.body = stage, name, role, host, pid, body
        self.parent_pid = 1
        self.wake_at = 0.0
        self.interruptible = False
        self.doomed = self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.handlers: dict[int, Any] = {}
        self.pending: list[int] = []
        self.paused_until = 0.0
        self._turn = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._turn.acquire()
        _local.actor = self
        try:
            if not self.doomed:
                self.result = self.body()
        except Killed:
            self.doomed = True
        except BaseException as exc:  # noqa: BLE001 - told to the world, which judges it
            self.error = exc
        self.done = True
        self.stage.main.release()

    # -- called by the stage

    def resume(self) -> None:
        """Let it run until it blocks or ends."""
        self._turn.release()
        if not self.stage.main.acquire(timeout=HAND_OVER_S):
            raise AssertionError(f"{self.name} does not come back")

    def signal(self, number: int) -> None:
        self.pending.append(number)
        if self.interruptible and self.stage.now() >= self.paused_until:
            self.wake_at = min(self.wake_at, self.stage.now())

    def kill(self) -> None:
        self.doomed = True
        self.wake_at = self.paused_until = 0.0

    # -- called by its own thread

    def block(self, seconds: float, *, interruptible: bool = False) -> None:
        """Let the others go on, at least until so much time has passed."""
        if self.doomed:
            raise Killed
        self.wake_at = self.stage.now() + seconds
        self.interruptible = interruptible and not self.pending
        if interruptible and self.pending:
            self.wake_at = self.stage.now()
        self.stage.main.release()
        self._turn.acquire()
        self.interruptible = False
        if self.doomed:
            raise Killed
        self._take_signals()

    def _take_signals(self) -> None:
        while self.pending:
            number = self.pending.pop(0)
            handler = self.handlers.get(number)
            if callable(handler):
                handler(number, None)

    def point(self, kind: str, what: str) -> None:
        """Something is about to be done that somebody may interrupt."""
        if self.doomed:
            raise Killed
        verdict = self.stage.policy(self, kind, what)
        if verdict.kind == "kill":
            self.doomed = True
            raise Killed
        if verdict.kind == "lose":
            raise ReplyLost
        if verdict.kind == "pause":
            self.paused_until = self.stage.now() + verdict.seconds
            self.block(verdict.seconds)
        elif verdict.kind == "yield":
            self.block(0.0)
        self._take_signals()


class _Local(threading.local):
    actor: Actor | None = None


_local = _Local()


def current() -> Actor | None:
    """The actor in whose thread this is called; None in the test's own."""
    return _local.actor


class Stage:
    """All actors, and whose turn it is. ``now`` is the virtual time in seconds since the epoch."""

    def __init__(self, now: Callable[[], float], rng: random.Random) -> None:
        self.now, self.rng = now, rng
        self.main = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.policy: Policy = lambda _actor, _kind, _what: GO
        self._next_pid = 1000

    def spawn(self, name: str, role: str, host: str, body: Callable[[], Any], delay_s: float = 0.0) -> Actor:
        self._next_pid += 1
        actor = Actor(self, name, role, host, self._next_pid, body)
        actor.wake_at = self.now() + delay_s
        self.actors.append(actor)
        return actor

    def runnable(self) -> list[Actor]:
        return [actor for actor in self.actors if not actor.done and actor.wake_at <= self.now() + 1e-6]

    def next_wake(self) -> float | None:
        return min((actor.wake_at for actor in self.actors if not actor.done), default=None)

    def step(self) -> Actor | None:
        """Let one of those who can, chosen by the seed, go on; None where all sleep."""
        ready = self.runnable()
        if not ready:
            return None
        actor = ready[0] if len(ready) == 1 else self.rng.choice(ready)
        actor.resume()
        if actor.done:
            self.actors.remove(actor)
        return actor

    def end(self) -> None:
        """Unwind everybody, so that no thread is left behind."""
        for actor in list(self.actors):
            actor.kill()
            actor.resume()
        self.actors.clear()
