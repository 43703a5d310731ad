"""A process that keeps the remote copy of one run: passes, turns with others, and what it tells."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmtrain.core.run import Run, fold
from slurmtrain.core.spec import Ship, parse_rate
from slurmtrain.errors import RemoteBusyError, RemoteError, StoreError
from slurmtrain.evidence.secrets import Masker
from slurmtrain.ops.shipping.content import Mask
from slurmtrain.ops.shipping.known import read_known
from slurmtrain.ops.shipping.ledger import State, read_state, write_state
from slurmtrain.ops.shipping.one_pass import Shipment, Subject
from slurmtrain.ops.shipping.report import Report
from slurmtrain.ops.shipping.start import LEASE
from slurmtrain.remote.open import open_remote
from slurmtrain.remote.pace import Pace, StoppedError
from slurmtrain.store.journal import read_journal
from slurmtrain.store.lease import Lease, is_held
from slurmtrain.store.rundir import Plan, RunDir

LEASE_S = 60.0
_RENEW_S = 15.0
_LATE_S = 3600.0  # a complete copy is looked at again for so long
_SETTLED_S = 15.0  # without a new line: the job of a run that is over has written its last
_AGAIN_S = 600.0  # until a storage that refused is asked again
_BUSY_AGAIN_S = 120.0


class TakenOverError(RemoteError):
    """Another process ships this run."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to ship where, and how. ``environ`` holds secrets to hide."""

    run: RunDir
    plan: Plan
    ship: Ship
    environ: Mapping[str, str]
    in_job: bool = False  # beside the training: the job's last lines are still to come

    @property
    def url(self) -> str:
        return self.ship.url or ""


class Shipper:
    """Makes passes for one run; holds the lease for the run while it does."""

    def __init__(self, order: Order, pace: Pace, tell: Callable[[str], None]) -> None:
        self._order = order
        self._pace = pace
        self._tell = tell
        self._shipment: Shipment | None = None
        self._lost = ""  # who has taken over
        self._told = ""

    def ship(self, *, wait_s: float = 0.0) -> Report:
        """One pass under the lease; of a run that is over, the final one. ``wait_s``: for another's turn to end.

        Raises ``RemoteError`` (``TakenOverError`` where another process ships), ``StoppedError``, ``StoreError``.
        """
        with self._turn(wait_s):
            return self._pass()

    def follow(self) -> Report | None:
        """Passes until the run is over and all of it is there, or until somebody asks to leave; the last report.

        Beside the training, whoever asks to leave is given one more pass: the last lines are the ones that matter.
        """
        while True:
            try:
                with self._turn(0.0):
                    return self._follow()
            except TakenOverError as exc:
                if not self._order.in_job and str(exc) != self._told:
                    self._told = str(exc)
                    self._tell(f"{exc}: this call goes on when that one ends")
                with contextlib.suppress(StoppedError):
                    self._pace.sleep(LEASE_S / 3)
                if self._pace.stopped:
                    return None

    def _follow(self) -> Report | None:
        last = False
        while True:
            report, pause = self._try_pass()
            if last or (report is not None and report.complete):
                return report
            self._may_go_on()
            try:
                self._pace.sleep(pause)
            except StoppedError:
                if not self._order.in_job:
                    return report
                self._pace.rearm()
                last = True

    def _try_pass(self) -> tuple[Report | None, float]:
        """The report of a pass, and how long to wait for the next; a problem is told once."""
        report, problem, pause = None, "", float(self._order.ship.every_s)
        try:
            report = self._pass()
            if not self._order.in_job and self._state().ended:
                pause = 1.0
        except TakenOverError:
            raise
        except StoppedError:
            return None, 0.0
        except (RemoteError, StoreError) as exc:
            problem, pause = str(exc), _BUSY_AGAIN_S if isinstance(exc, RemoteBusyError) else _AGAIN_S
            self._shipment = None  # renewed credentials are read by a new session only
        if problem != self._told:
            self._tell(problem or "shipping goes on")
            self._told = problem
        return report, pause

    def _pass(self) -> Report:
        began = time.time()
        order, folder = self._order, self._order.run.ship
        try:
            if self._shipment is None:
                self._shipment = self._open()
            state = self._state()
            final = state.ended and not order.in_job and not _still_writes(order.run)
            report = self._shipment.make_pass(state.state.value, final=final)
        except RemoteError as exc:
            if not isinstance(exc, TakenOverError):
                again = _BUSY_AGAIN_S if isinstance(exc, RemoteBusyError) else _AGAIN_S
                self._note(read_state(folder).looked_at, str(exc), time.time() + again)
            raise
        retry_at = time.time() + _SETTLED_S if (state.ended and not report.complete) or report.late else None
        self._note(began - 1.0, "", retry_at, complete=report.complete)
        return report

    def _note(self, looked_at: float, problem: str, retry_at: float | None, *, complete: bool = False) -> None:
        """How far the copy is that the job file asks for; one to somewhere else is nobody's business."""
        order = self._order
        if order.url == order.plan.spec.ship.url:
            write_state(order.run.ship, State(order.url, looked_at, complete, problem, retry_at))

    def _open(self) -> Shipment:
        order, ship = self._order, self._order.ship
        remote = open_remote(order.url, self._pace, endpoint=ship.endpoint, profile=ship.profile)
        secrets = {**order.environ, **order.plan.spec.environment.variables}
        mask = Mask(Masker(secrets), read_known(order.run.ship))
        facts: dict[str, object] = {
            "name": order.plan.spec.name,
            "user": str(order.plan.data.get("user", "")),
            "store": str(order.run.path.parent.parent),
            "created_at": order.plan.data.get("created_at"),
        }
        return Shipment(Subject(order.run, order.plan.spec, ship, facts), remote, mask, self._may_go_on)

    def _state(self) -> Run:
        return fold(read_journal(self._order.run.journal, skip_unreadable=True))

    def _may_go_on(self) -> None:
        if self._lost:
            raise TakenOverError(f"{self._order.run.run_id} is shipped by {self._lost} now")

    @contextlib.contextmanager
    def _turn(self, wait_s: float) -> Iterator[None]:
        lease = Lease(self._order.run.ship / LEASE, LEASE_S)
        self._take(lease, wait_s)
        self._lost = ""
        done = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(lease, done), daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join(5.0)
            with contextlib.suppress(StoreError):
                lease.give_back()

    def _take(self, lease: Lease, wait_s: float) -> None:
        """A store that cannot be written needs no lease: nobody else can take it either."""
        deadline = time.monotonic() + wait_s
        told = False
        with contextlib.suppress(OSError):
            self._order.run.ship.mkdir(exist_ok=True)
        while True:
            try:
                holder = lease.acquire()
            except StoreError:
                return
            if holder is None:
                return
            if time.monotonic() >= deadline:
                raise TakenOverError(f"{self._order.run.run_id} is shipped by {holder} now")
            if not told:
                self._tell(
                    f"{holder} ships {self._order.run.run_id}: waiting for it, or until it gives no sign of life"
                )
                told = True
            self._pace.sleep(2.0)

    def _keep(self, lease: Lease, done: threading.Event) -> None:
        while not done.wait(_RENEW_S):
            with contextlib.suppress(StoreError):
                self._lost = lease.acquire() or ""
                if self._lost:
                    return


def make_pace(ship: Ship, patience_s: float, tell: Callable[[str], None]) -> Pace:
    """At the rate that the run allows."""
    return Pace(parse_rate(ship.rate), patience_s, tell)


def _still_writes(run: RunDir) -> bool:
    """Whether the job of a run that is over wrote something just now."""
    newest = max((_modified(entry) for folder in (run.logs, run.journal) for entry in _entries(folder)), default=0.0)
    return 0 <= time.time() - newest < _SETTLED_S


def is_due(run_dir: Path, now: float) -> bool:
    """Whether a pass over this run would find something to do, and nobody else makes one; cheap. Never raises."""
    if is_held(run_dir / "ship" / LEASE):
        return False
    state = read_state(run_dir / "ship")
    if state.retry_at is not None:
        return now >= min(state.retry_at, now + _AGAIN_S)  # a clock that was wrong must not stop it for ever
    if state.complete and now - state.looked_at > _LATE_S:
        return False  # what changes now is ``prune`` at work
    return _changed_since(run_dir, state.looked_at)


def _changed_since(run_dir: Path, at: float) -> bool:
    folders = [run_dir / "journal", run_dir / "logs"]
    for attempt in _entries(run_dir / "attempts"):
        launches = [Path(launch.path) for launch in _entries(Path(attempt.path, "launches"))]
        folders += [Path(attempt.path), Path(attempt.path, "launches"), *launches]
        folders += [launch / "scene" for launch in launches]
    return any(_modified(entry) > at for folder in folders for entry in _entries(folder))


def _modified(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
