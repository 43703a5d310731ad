"""Submit a run: its directory appears whole or not at all, then Slurm gets the batch script."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slurmtrain.core.events import Event, RunCreated, SubmissionUncertain, Submitted
from slurmtrain.core.jobid import JobId
from slurmtrain.errors import (
    HostUnreachableError,
    SlurmBusyError,
    SlurmRefusedError,
    SlurmtrainError,
    SlurmUnavailableError,
    StoreError,
)
from slurmtrain.ops.prepare import Prepared, build_files
from slurmtrain.ops.rescue import arm_rescue
from slurmtrain.ops.submitter import submitter
from slurmtrain.slurm.client import SlurmClient
from slurmtrain.store.filesystem import is_local
from slurmtrain.store.journal import JournalWriter
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir, runs_of

_BUSY_PAUSES_S = (2.0, 5.0, 10.0, 20.0)
# sbatch could not even connect, so no job can exist (texts of slurm_errno.c).
_NEVER_SENT = re.compile(
    r"connect failure|Could not establish a configuration source|slurm\.conf|Can't find an address"
)
_DIR_MODE = 0o755  # whatever the umask: who can write here can run code in the owner's name
RUN_FOLDERS = ("attempts", "checkpoints", "journal", "logs", "submissions")

_WRITERS = 16
_T = TypeVar("_T")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Accepted:
    """Slurm took the job."""

    run: RunDir
    job_id: JobId
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Handover:
    """One sbatch: a script, the runs that begin with it (each with its task of the array, if it is one), and the
    directories that go again where Slurm takes nothing."""

    script: Path
    runs: Sequence[tuple[RunDir, int | None]]
    directories: Sequence[Path]
    what: str
    answer: Path | None = None  # of an array: where sbatch's answer is kept, before each run gets its part of it

    def job_of(self, submitted: JobId, task: int | None) -> JobId:
        return submitted if task is None else JobId(submitted.base, task)

    def without_path(self, exc: SlurmtrainError) -> str:
        return str(exc).removeprefix(f"cannot submit {self.script}: ")

    def discard(self) -> None:
        """Take directories away that have no job; renamed first, so that nobody sees them half gone."""
        for path in self.directories:
            doomed = path.parent / f".{path.name}.{secrets.token_hex(3)}.tmp"
            try:
                path.rename(doomed)
            except OSError:
                doomed = path
            shutil.rmtree(doomed, ignore_errors=True)


def submit_run(
    prepared: Prepared,
    slurm: SlurmClient,
    *,
    name: str,
    tell: Tell = lambda _text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Accepted:
    """Write the run directory and hand the job to Slurm; raises as ``hand_over`` and ``create_run_dir`` do."""
    store, run = prepared.run.path.parent.parent, prepared.run
    create_run_dir(prepared)
    task = prepared.array.task if prepared.array is not None else None
    handover = Handover(run.batch_script, [(run, task)], [run.path], f"run {run.run_id}")
    submitted, notes = hand_over(handover, slurm, name=name, tell=tell, sleep=sleep)
    job_id = handover.job_of(submitted, task)
    problem = arm_rescue(run, prepared.resolved.spec, job_id, slurm)
    return Accepted(run, job_id, (*notes, *([problem] if problem else []), *_store_note(store)))


def hand_over(
    handover: Handover, slurm: SlurmClient, *, name: str, tell: Tell, sleep: Callable[[float], None]
) -> tuple[JobId, list[str]]:
    """Hand the script of runs that are written down to Slurm; what sbatch answered, and notes.

    Raises ``StoreError`` (nothing was left behind), ``SlurmRefusedError`` and ``SlurmBusyError`` (likewise), and
    ``SlurmUnavailableError`` where the reply was lost: the runs then stay, because their jobs may exist.
    """
    journals = [JournalWriter(run.journal, f"submit-{os.uname().nodename}-{os.getpid()}") for run, _ in handover.runs]
    facts = submitter()

    def begin(journal: JournalWriter, run: RunDir) -> None:
        journal.append(RunCreated(at=time.time(), who="user", name=name, **facts), sync=True)
        run.submission(0).with_suffix(".pending").touch(mode=0o644)

    def record(journal: JournalWriter, run: RunDir, task: int | None) -> list[str]:
        return _record_job(run, journal, handover.job_of(submitted, task))

    try:
        for_each(begin, journals, [run for run, _ in handover.runs])
        submitted = _submit(handover, slurm, tell, sleep)
    except SlurmUnavailableError as exc:
        raise _reply_was_lost(exc, handover, journals) from exc
    except SlurmRefusedError as exc:
        handover.discard()
        hint = f"{_partitions(exc, slurm)}{_largest_task(exc, slurm)}"
        raise SlurmRefusedError(f"nothing was submitted: {handover.without_path(exc)}{hint}") from exc
    except BaseException as exc:
        handover.discard()
        if isinstance(exc, OSError):
            raise StoreError(f"cannot write {handover.directories[0]}: {exc.strerror or exc}") from exc
        raise
    if handover.answer is not None:
        with contextlib.suppress(StoreError):  # each run has its own record, which says so if it fails
            publish_once(handover.answer, to_json({"job_id": str(submitted), "at": time.time()}))
    notes = for_each(record, journals, [run for run, _ in handover.runs], [task for _, task in handover.runs])
    return submitted, [note for listed in notes for note in listed]


def for_each(function: Callable[..., _T], *arguments: Sequence[Any]) -> list[_T]:
    """``map``; several at once where there are many, because each waits for the disk or the file server."""
    if len(arguments[0]) < 2:
        return list(map(function, *arguments))
    with ThreadPoolExecutor(_WRITERS) as pool:
        return list(pool.map(function, *arguments))


def _reply_was_lost(
    exc: SlurmUnavailableError, handover: Handover, journals: Sequence[JournalWriter]
) -> SlurmUnavailableError:
    if _was_never_sent(exc):
        handover.discard()
        return type(exc)(f"nothing was submitted: {handover.without_path(exc)}")
    for journal in journals:
        _record(journal, SubmissionUncertain(at=time.time(), who="user", submission=0, message=str(exc)))
    return SlurmUnavailableError(
        f"Slurm did not say whether it took the job ({handover.without_path(exc)}). The {handover.what} is kept: "
        "if its job exists it will run, and only once; `slurmtrain status` shows it in a minute"
    )


def create_run_dir(prepared: Prepared) -> None:
    """The whole run directory under a temporary name, then renamed. Raises ``StoreError``; nothing is left behind."""
    create_dir(prepared.run.path, build_files(prepared), folders_of(prepared))


def folders_of(prepared: Prepared) -> tuple[str, ...]:
    """The folders that a run has from the beginning; only with ``ship.url`` that of shipping."""
    return (*RUN_FOLDERS, prepared.run.ship.name) if prepared.resolved.spec.ship.url is not None else RUN_FOLDERS


def create_dir(
    final: Path, files: Mapping[str, tuple[bytes, int]], folders: Sequence[str] = (), links: Sequence[Path] = ()
) -> None:
    """A directory that appears whole. ``links`` are files of ours that it shares with others of its kind."""
    temporary = final.parent / f".{final.name}.{secrets.token_hex(3)}.tmp"
    try:
        for above in (final.parent.parent, final.parent):
            above.mkdir(mode=_DIR_MODE, parents=True, exist_ok=True)
        temporary.mkdir(mode=_DIR_MODE)
    except OSError as exc:
        raise StoreError(f"cannot write the store {final.parent.parent}: {exc.strerror or exc}; see --store") from exc
    try:
        for folder in folders:
            (temporary / folder).mkdir(mode=_DIR_MODE)
        write_files(temporary, files)
        for shared in links:
            _link(shared, temporary / shared.name)
        if final.exists():
            raise StoreError(f"{final} exists already")
        temporary.rename(final)
    except BaseException as exc:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(exc, OSError):
            raise StoreError(f"cannot write {final}: {exc.strerror or exc}; nothing was submitted") from exc
        raise


def _link(shared: Path, path: Path) -> None:
    """One file under two names; a copy where the file system has no such links."""
    try:
        os.link(shared, path)
    except OSError:
        shutil.copy2(shared, path)


def write_files(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files through to the disk; the umask can only narrow their modes."""
    for name, (data, mode) in files.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)


def _submit(handover: Handover, slurm: SlurmClient, tell: Tell, sleep: Callable[[float], None]) -> JobId:
    """The number of the submission stays the same: if two of these tries became jobs, only one of them trains."""
    for pause in _BUSY_PAUSES_S:
        try:
            return slurm.submit(handover.script, arguments=["0"])
        except SlurmBusyError as exc:
            tell(f"Slurm does not take jobs now ({handover.without_path(exc)}): trying again in {pause:.0f} s")
            sleep(pause)
    return slurm.submit(handover.script, arguments=["0"])


def _was_never_sent(exc: SlurmUnavailableError) -> bool:
    return isinstance(exc, HostUnreachableError | SlurmBusyError) or _NEVER_SENT.search(str(exc)) is not None


def _partitions(exc: SlurmRefusedError, slurm: SlurmClient) -> str:
    """The partitions that exist, where an unknown one was asked for."""
    if "artition" not in str(exc):
        return ""
    try:
        names = sorted({name for node in slurm.nodes() for name in node.partitions})
    except SlurmtrainError:
        return ""
    return f"; partitions here: {', '.join(names[:30])}" if names else ""


def _largest_task(exc: SlurmRefusedError, slurm: SlurmClient) -> str:
    """Where an array was refused: what slurm.conf allows."""
    if "array spec" not in str(exc):
        return ""
    try:
        size = slurm.capabilities().max_array_size
    except SlurmtrainError:
        return ""
    return f"; MaxArraySize is {size} here, so the largest task number is {size - 1}" if size else ""


def _record_job(run: RunDir, journal: JournalWriter, job_id: JobId) -> list[str]:
    """The job exists from here on, so nothing that fails now may look like a failed submission."""
    record = {"job_id": str(job_id), "claimed_by": "user", "at": time.time()}
    try:
        publish_once(run.submission(0), to_json(record))
        journal.append(Submitted(at=time.time(), who="user", submission=0, job_id=str(job_id)), sync=True)
    except StoreError as exc:
        return [f"job {job_id} runs, but its id could not be recorded: {exc}"]
    return []


def _record(journal: JournalWriter, event: Event) -> None:
    with contextlib.suppress(StoreError):
        journal.append(event, sync=True)


def _store_note(store: Path) -> list[str]:
    """Told once: a store that compute nodes cannot see makes every job fail at its first line."""
    with contextlib.suppress(StoreError):
        if is_local(store) and len(runs_of(store)) == 1:
            return [f"{store} is on a file system of this machine; compute nodes must see the same files (--store)"]
    return []
