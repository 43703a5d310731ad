"""What the agent writes down: into the journal, never at the cost of the training."""

from __future__ import annotations

import contextlib
import dataclasses
import pwd
import time
from pathlib import Path
from typing import Any

from slurmtrain.agent.job import JobContext
from slurmtrain.agent.say import say
from slurmtrain.checkpoints.find import Found
from slurmtrain.core import events as ev
from slurmtrain.core.decision import Decision, decision_to_dict
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.core.facts import RankExit
from slurmtrain.core.run import Run, fold
from slurmtrain.errors import StoreError
from slurmtrain.ops.observe import build_job_seen
from slurmtrain.slurm.client import JobRecord
from slurmtrain.store.journal import JournalWriter, read_journal

_TRY_AGAIN_S = 15.0  # after the journal could not be written
_MAX_RANK_EXITS = 1024  # in one journal line; more say nothing new


def _who_made(path: Path | None) -> str:
    """The owner of a stop file, as far as it can be told."""
    try:
        uid = path.stat().st_uid if path is not None else -1
        name = pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        return "a stop file"
    return f"{name}, by the file {path}"


class Record:
    """The journal of one attempt, as the agent keeps it. Never raises: a journal that fails is told and forgiven.

    What could not be written is kept and written with the next event, so that a full disk loses nothing, and a launch
    that nobody could write down still counts.
    """

    def __init__(self, journal: JournalWriter, directory: Path, attempt: int) -> None:
        self._journal = journal
        self._directory = directory
        self.attempt = attempt
        self._known: list[ev.Event] = []  # all journals, when they could last be read
        self._since: list[ev.Event] = []  # of ours, written or not, after that
        self._unwritten: list[ev.Event] = []
        self._trouble: ev.StoreTrouble | None = None
        self._next_try = 0.0

    def read_run(self) -> Run:
        """The run as all journals tell it, and as far as we know better."""
        try:
            self._known = read_journal(self._directory)
        except StoreError as exc:
            say(f"{exc}; going on with what is known")
            if not self._known:
                self._known = read_journal(self._directory, skip_unreadable=True)
                self._since = list(self._unwritten)
            return fold([*self._known, *self._since])
        self._since = list(self._unwritten)
        return fold([*self._known, *self._unwritten])

    def job_seen(self, seen: JobRecord) -> None:
        """What Slurm said of a job that is not this agent's any more: nobody else may look before Slurm forgets it."""
        with contextlib.suppress(OSError, StoreError):
            self._journal.catch_up()
        self._write(build_job_seen(seen, at=time.time(), who="agent", attempt=self.attempt), sync=True)

    def launch_started(self, launch: int, log_file: str, log_offset: int, resume_from: Found | None) -> None:
        self._write(
            ev.LaunchStarted(
                **self._head(launch),
                resume_from=str(resume_from.path) if resume_from else None,
                progress=resume_from.step if resume_from else None,
                log_file=log_file,
                log_offset=log_offset,
            )
        )

    def set_aside(self, path: Path, why: str) -> None:
        """A checkpoint lies there now."""
        self._write(ev.CheckpointSetAside(**self._head(), path=str(path), why=why))

    def stage_started(self, stage: str, tries: int) -> None:
        self._write(ev.StageStarted(**self._head(), stage=stage, tries=tries))

    def stage_ended(
        self,
        stage: str,
        *,
        exit_code: int,
        duration_s: float,
        stop_reason: str | None,
        diagnosis: Diagnosis | None,
    ) -> None:
        self._write(
            ev.StageEnded(
                **self._head(),
                stage=stage,
                exit_code=exit_code,
                duration_s=round(duration_s, 3),
                stop_reason=stop_reason,
                cause=diagnosis.cause if diagnosis else "",
                sentence=diagnosis.sentence if diagnosis else "",
            ),
            sync=True,
        )

    def stop_noticed(self, job: JobContext) -> None:
        """A stop file that `slurmtrain stop` has not written down: a colleague may have touched it."""
        if self.read_run().stop_requested is None:
            self._write(ev.StopRequested(**self._head(), by=_who_made(job.find_stop_request())))

    def stop_sent(self, launch: int, reason: str, deadline: float | None, detail: str = "") -> None:
        self._write(ev.StopSent(**self._head(launch), reason=reason, deadline=deadline, detail=detail))

    def node_noticed(self, what: str, detail: str, *, followed: bool) -> None:
        self._write(ev.NodeNoticed(**self._head(), what=what, detail=detail, followed=followed))

    def launch_noticed(
        self, launch: int, what: str, detail: str, *, rank: int | None = None, node: str = "", over: bool = False
    ) -> None:
        self._write(ev.LaunchNoticed(**self._head(launch), what=what, detail=detail, rank=rank, node=node, over=over))

    def scene_taken(self, launch: int, path: str, ending: str, *, nodes: int, of: int, seconds: float) -> None:
        detail = "" if nodes >= of else f"{of - nodes} did not answer in {seconds:.0f} s"
        self._write(
            ev.SceneTaken(
                **self._head(launch),
                path=path,
                ending=ending,
                nodes=nodes,
                of=of,
                duration_s=round(seconds, 2),
                detail=detail,
            )
        )

    def launch_ended(
        self,
        launch: int,
        *,
        exit_code: int,
        duration_s: float,
        stop_reason: str | None,
        progress: int | None,
        step: int | None = None,
        done: bool,
        saved: str = "",
        rank_exits: list[RankExit],
        log_end: int,
    ) -> None:
        exits = tuple(
            {"rank": e.rank, "node": e.node, "exit_code": e.exit_code, "signal": e.signal, "order": e.order}
            for e in rank_exits[:_MAX_RANK_EXITS]
        )
        self._write(
            ev.LaunchEnded(
                **self._head(launch),
                exit_code=exit_code,
                duration_s=round(duration_s, 3),
                stop_reason=stop_reason,
                progress=progress,
                step=step,
                done=done,
                saved=saved,
                rank_exits=exits,
                log_end=log_end,
            ),
            sync=True,
        )

    def diagnosed(self, launch: int, diagnosis: Diagnosis) -> None:
        self._write(ev.Diagnosed(**self._head(launch), diagnosis=diagnosis.to_dict()))

    def decided(self, launch: int, decision: Decision) -> None:
        self._write(ev.Decided(**self._head(launch), decision=decision_to_dict(decision)), sync=True)

    def acted(self, action: str, *, accepted: bool, detail: str, leaves_at: float | None = None) -> None:
        self._write(
            ev.Acted(**self._head(), action=action, accepted=accepted, detail=detail, leaves_at=leaves_at), sync=True
        )

    def came_back(self, attempt: int, clean_up_s: float, waited_s: float) -> None:
        """About an attempt before this one."""
        head = {**self._head(), "attempt": attempt}
        self._write(ev.CameBack(**head, clean_up_s=round(clean_up_s, 1), waited_s=round(waited_s, 1)))

    def _head(self, launch: int = -1) -> dict[str, Any]:
        return {"at": time.time(), "who": "agent", "attempt": self.attempt, "launch": launch}

    def log_is_full(self, launch: int) -> None:
        head = self._head(launch)
        problem = "the file system of the log is full: Slurm drops what the training prints until the launch ends"
        self._write(ev.StoreTrouble(**head, problem=problem, until=head["at"]))

    def catch_up(self) -> None:
        """Write what could not be written, if there is room again. Cheap: tries now and then."""
        if self._unwritten and time.monotonic() >= self._next_try:
            self._flush(sync=True)

    def _write(self, event: ev.Event, *, sync: bool = False) -> None:
        self._since.append(event)
        self._unwritten.append(event)
        self._flush(sync=sync)

    def _flush(self, *, sync: bool) -> None:
        trouble = [dataclasses.replace(self._trouble, until=time.time())] if self._trouble is not None else []
        try:
            self._journal.append(*trouble, *self._unwritten, sync=sync)
        except StoreError as exc:
            self._next_try = time.monotonic() + _TRY_AGAIN_S
            if self._trouble is None:
                say(f"{exc}; the training goes on, and this is written down once it can be")
                head = self._head(self._unwritten[0].launch)
                self._trouble = ev.StoreTrouble(**head, problem=str(exc), until=head["at"])
        else:
            if trouble:
                say("the run's journal can be written again: nothing of it is lost")
            self._trouble = None
            self._unwritten.clear()
