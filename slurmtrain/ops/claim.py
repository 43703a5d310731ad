"""Claiming an attempt: one directory for each execution of a job of the run, whoever claims it and whoever dies at it.

Two steps, each of which the server settles once. A small file of the execution says which number it has; then the
attempt's directory, which already holds its owner, is renamed into place. So an attempt never lies there without an
owner, a claim that was left half-way is finished by the next one, and two who claim the same execution get the same.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Container, Mapping
from typing import Any

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import publish_directory, publish_once, read_json, to_json
from slurmtrain.store.rundir import AttemptDir, RunDir

_MAX_TURNS = 1000  # a turn is lost only to another execution of the run that begins in the same moment
_LATE_S = 180.0  # network file systems show another host's new file within a minute


def claim_attempt(
    run: RunDir, owner: Mapping[str, object], patience_s: float = 0.0, known: Container[int] | None = None
) -> AttemptDir:
    """The attempt of the execution that ``owner`` names by ``job_id`` and ``restart_count``.

    Made by this call or by somebody before: ``read_owner`` tells. Raises ``StoreError``, also where somebody made it
    just now on another host and it cannot be read yet after so many seconds, and where the run has an attempt besides
    those whose numbers are ``known``: whoever claims has seen to those before, and looks again.
    """
    claimed = find_claimed(run, str(owner.get("job_id")), owner.get("restart_count"))
    if claimed is not None:
        return claimed
    try:
        run.attempts.mkdir(mode=0o755, parents=True, exist_ok=True)
        number = -1
        for turn in range(_MAX_TURNS):
            number = _agree_on_number(run, owner, turn, number + 1)
            attempt = run.attempt(number)
            _check_known(run, known)
            if _make(attempt, owner) or _is_theirs(attempt, owner, patience_s):
                return attempt
    except OSError as exc:
        raise StoreError(f"cannot make an attempt in {run.attempts}: {exc.strerror or exc}") from exc
    raise StoreError(f"{run.attempts} holds more attempts than a run can have")


def _check_known(run: RunDir, known: Container[int] | None) -> None:
    """Network file systems show another host's attempt late, often only to whoever is about to make the same one."""
    late = [] if known is None else [a.number for a in run.read_attempts() if a.number not in known]
    if late:
        raise StoreError(f"attempt {late[-1]} of {run.run_id} is to be seen only now")


def find_claimed(run: RunDir, job_id: str, restart_count: object) -> AttemptDir | None:
    """The attempt of this execution, newest first; None where nobody has claimed it."""
    execution = {"job_id": job_id, "restart_count": restart_count}
    return next((attempt for attempt in reversed(run.read_attempts()) if _is_of(attempt, execution)), None)


def came_before(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Whether Slurm began the first of these executions before the second, as far as their owners tell.

    Attempts are numbered as they are claimed. A node that was lost, or an agent that stood still at its gate, claims
    after its successor has.
    """
    key = "restart_count" if str(first.get("job_id")) == str(second.get("job_id")) else "submission"
    one, two = first.get(key), second.get(key)
    return isinstance(one, int) and isinstance(two, int) and one < two


def find_successor(run: RunDir, owner: Mapping[str, object]) -> AttemptDir | None:
    """An attempt of an execution that Slurm began after this one, whatever its number."""
    return next((a for a in reversed(run.read_attempts()) if came_before(owner, a.read_owner() or {})), None)


def _is_theirs(attempt: AttemptDir, owner: Mapping[str, object], patience_s: float) -> bool:
    """Whether the directory that lies there is of the same execution: its owner may be seen late, or be damaged."""
    deadline = time.monotonic() + patience_s
    while attempt.read_owner() is None:
        if time.monotonic() >= deadline:
            if _age(attempt) > _LATE_S:
                return False
            raise StoreError(f"cannot read {attempt.owner} yet: somebody has claimed the attempt just now")
        time.sleep(1.0)
    return _is_of(attempt, owner)


def _age(attempt: AttemptDir) -> float:
    """Seconds since the directory was made; none where it cannot be seen."""
    try:
        return time.time() - attempt.path.stat().st_mtime
    except OSError:
        return 0.0


def _is_of(attempt: AttemptDir, execution: Mapping[str, object]) -> bool:
    owner = attempt.read_owner() or {}
    return all(str(owner.get(key)) == str(execution.get(key)) for key in ("job_id", "restart_count"))


def _agree_on_number(run: RunDir, owner: Mapping[str, object], turn: int, at_least: int) -> int:
    """The number that all who claim this execution try in this turn: the first of them proposed it."""
    path = run.attempts / f"claim-{owner.get('job_id')}-{owner.get('restart_count')}-{turn}.json"
    proposed = max([at_least, *(attempt.number + 1 for attempt in run.read_attempts())])
    if publish_once(path, to_json({"attempt": proposed, "at": time.time()})):
        return proposed
    agreed: Any = (read_json(path) or {}).get("attempt")
    if not isinstance(agreed, int):
        raise StoreError(f"cannot read {path}: the attempt's number is not known")
    return agreed


def _make(attempt: AttemptDir, owner: Mapping[str, object]) -> bool:
    with contextlib.ExitStack() as cleaning:
        staged = attempt.path.with_name(f".{attempt.path.name}.{time.time_ns():x}.tmp")
        staged.mkdir(mode=0o755)
        cleaning.callback(shutil.rmtree, staged, ignore_errors=True)
        publish_once(staged / attempt.owner.name, to_json({**owner, "at": time.time()}))
        (staged / attempt.nodes.name).mkdir(mode=0o755)
        return publish_directory(staged, attempt.path)
