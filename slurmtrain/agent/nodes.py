"""Nodes of the job that an administrator wants back: they drain, or a maintenance of them comes.

Controller budget: one ``sinfo`` for the job's nodes every ``stop.node_look_s`` (two minutes), with every fifth of them
one ``scontrol show reservation``, and one more of either before anything is done. The looks are spread by chance, so
that many jobs that started together do not ask together.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.core.nodeset import expand_nodes, fold_nodes
from slurmtrain.core.spec import warning_lead_s
from slurmtrain.errors import SlurmtrainError
from slurmtrain.slurm.client import NodeRecord, ReservationRecord, SlurmClient

# A reboot that waits until a node is idle (scontrol reboot without ASAP) does not drain it, and asks nobody to leave.
_LEAVING = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})
_REBOOT = frozenset({"REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"})
_LOOKS_PER_RESERVATION_LOOK = 5
_CONFIRM_S = 30.0  # a health check may drain a node and resume it in the next minute
_JITTER = 0.2
_MAX_DETAIL = 300


@dataclass(frozen=True, slots=True)
class Move:
    """Why to leave the nodes: ``drain``, or ``maintenance`` that begins ``at`` (epoch seconds)."""

    reason: str
    detail: str
    at: float | None = None


class Notice(Protocol):
    """Writes down what was found."""

    def __call__(self, what: str, detail: str, *, followed: bool) -> None: ...


def _in_background(look: Callable[[], None]) -> None:
    """A Slurm that hangs must not keep the launch loop from the time limit."""
    threading.Thread(target=look, daemon=True).start()


class NodeWatch:
    """Looks at the job's nodes from time to time. ``check`` is cheap and never waits for Slurm."""

    def __init__(
        self,
        job: JobContext,
        slurm: SlurmClient,
        notice: Notice,
        can_continue: Callable[[], bool],
        run_look: Callable[[Callable[[], None]], None] = _in_background,
    ) -> None:
        self._job = job
        self._slurm = slurm
        self._notice = notice
        self._can_continue = can_continue
        self._run_look = run_look
        stop = job.plan.spec.stop
        self._drain, self._maintenance = stop.on_drain == "continue", stop.on_maintenance == "continue"
        self._interval = float(stop.node_look_s) if self._drain or self._maintenance else 0.0
        lead = stop.maintenance_lead_s
        self._lead = float(lead if lead is not None else warning_lead_s(job.plan.spec))
        self._begun = time.time()
        self._next_look = time.monotonic() + self._interval * random.random()  # noqa: S311 - spreads load
        self._looks = 0
        self._looking = False
        self._draining: str = ""  # what is draining, in words, at the last look
        self._confirmed = False
        self._coming: Move | None = None
        self._asked_again = False
        self._ignored = ""
        self._judged = -1  # the look after which it was last thought about

    def check(self, end_time: float | None) -> Move | None:
        """Why the job must leave its nodes now, if it must. ``end_time`` is that of the time limit."""
        if self._interval <= 0:
            return None
        if not self._looking and time.monotonic() >= self._next_look:
            self._looking = True
            self._run_look(self._look)
        if self._confirmed and self._judged != self._looks:
            self._judged = self._looks
            if (move := self._leave_draining()) is not None:
                return move
        return self._leave_for_maintenance(end_time)

    def _leave_draining(self) -> Move | None:
        detail = self._draining
        followed = self._can_continue()
        if not detail or (not followed and detail == self._ignored):
            return None
        if not followed:
            self._ignored = detail
            detail += "; the training stays, for without a checkpoint it would lose everything"
            say(detail)
        self._notice("drain", detail, followed=followed)
        return Move("drain", detail) if followed else None

    def _leave_for_maintenance(self, end_time: float | None) -> Move | None:
        move = self._coming
        if move is None or move.at is None or (end_time is not None and end_time <= move.at):
            return None
        if time.time() < move.at - self._lead:
            return None
        if not self._asked_again:  # it may have been moved since
            self._asked_again = True
            self._looks, self._next_look = 0, time.monotonic()
            return None
        if self._looking:
            return None
        self._notice("maintenance", move.detail, followed=True)
        return move

    # -- asking Slurm, in another thread -----------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            if self._drain:
                self._look_at_nodes()
            if self._maintenance and self._looks % _LOOKS_PER_RESERVATION_LOOK == 0:
                self._look_at_reservations()
        except (SlurmtrainError, ValueError):
            pass  # nothing was learnt; what was known stays
        finally:
            self._looks += 1
            pause = self._interval * random.uniform(1 - _JITTER, 1 + _JITTER)  # noqa: S311 - spreads load
            if self._draining and not self._confirmed:
                pause = min(pause, _CONFIRM_S)
            self._next_look = time.monotonic() + pause
            self._looking = False

    def _look_at_nodes(self) -> None:
        own = set(expand_nodes(self._job.nodes))
        found = describe_leaving(node for node in self._slurm.nodes(self._job.nodes) if node.name in own)
        self._confirmed = bool(found) and bool(self._draining)
        self._draining = found

    def _look_at_reservations(self) -> None:
        own = set(expand_nodes(self._job.nodes))
        before = self._coming
        inside = self._job.plan.spec.resources.reservation or ""
        self._coming = find_maintenance(self._slurm.reservations(), own, self._begun, inside.split(","))
        if before is None or self._coming is None or self._coming.at != before.at:
            self._asked_again = False


def describe_leaving(nodes: Iterable[NodeRecord]) -> str:
    """The nodes that an administrator wants free, and why, in words; "" for none."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        if node.states & _LEAVING:
            why = node.reason or ("a reboot was asked for" if node.states & _REBOOT else "no reason given")
            groups.setdefault(why, []).append(node.name)
    words = (f"{fold_nodes(names)} drain{'s' * (len(names) == 1)} ({why})" for why, names in groups.items())
    return "; ".join(words)[:_MAX_DETAIL]


def find_maintenance(
    reservations: Iterable[ReservationRecord], own: Collection[str], begun: float, inside: Collection[str] = ()
) -> Move | None:
    """The first maintenance of these nodes that was not under way when the job started (``begun``)."""
    found: list[tuple[float, ReservationRecord, list[str]]] = []
    for reservation in reservations:
        start = reservation.start_time.timestamp() if reservation.start_time else None
        if start is None or start <= begun or "MAINT" not in reservation.flags or reservation.name in inside:
            continue
        if hit := [node for node in expand_nodes(reservation.nodes) if node in own]:
            found.append((start, reservation, hit))
    if not found:
        return None
    start, reservation, hit = min(found, key=lambda entry: entry[0])
    date = datetime.fromtimestamp(start, timezone.utc).astimezone()
    detail = f"maintenance {reservation.name} of {fold_nodes(hit)} begins {date:%Y-%m-%d %H:%M}"
    return Move("maintenance", detail[:_MAX_DETAIL], start)
