"""Claiming an attempt: one directory for each execution of a job of the run."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import publish_once, read_json, replace, to_json
from slurmtrain.store.rundir import AttemptDir, RunDir

_MAX_ATTEMPTS = 1_000_000
_RESERVED_S = 30.0


def claim_attempt(run: RunDir, owner: Mapping[str, object]) -> AttemptDir:
    """The next free number: ``mkdir`` is atomic everywhere, the owner's record follows at once."""
    attempts = run.read_attempts()
    number = attempts[-1].number + 1 if attempts else 0
    try:
        run.attempts.mkdir(mode=0o755, parents=True, exist_ok=True)
        while number < _MAX_ATTEMPTS:
            attempt = run.attempt(number)
            try:
                attempt.path.mkdir(mode=0o755)
            except FileExistsError:
                number += 1
                continue
            with contextlib.suppress(OSError):
                attempt.nodes.mkdir(mode=0o755)
            publish_once(attempt.owner, to_json({**owner, "at": time.time()}))
            return attempt
    except OSError as exc:
        raise StoreError(f"cannot make an attempt in {run.attempts}: {exc.strerror or exc}") from exc
    raise StoreError(f"{run.attempts} holds more attempts than a run can have")


def reserve_execution(run: RunDir, job_id: str, restart_count: int) -> bool:
    """For an execution whose gate was never passed: one watcher claims it. A watcher that died meanwhile loses it."""
    path = run.submissions / f"dead-{job_id}-{restart_count}.json"
    record = to_json({"host": socket.gethostname(), "pid": os.getpid(), "at": time.time()})
    with contextlib.suppress(OSError):
        run.submissions.mkdir(mode=0o755, parents=True, exist_ok=True)
    if publish_once(path, record):
        return True
    at = (read_json(path) or {}).get("at")
    if isinstance(at, (int, float)) and abs(time.time() - at) < _RESERVED_S:
        return False
    replace(path, record)
    return True


def find_claimed(run: RunDir, job_id: str, restart_count: int) -> AttemptDir | None:
    """The attempt of this execution, newest first; None where its gate was never passed."""
    for attempt in reversed(run.read_attempts()):
        owner = attempt.read_owner() or {}
        if str(owner.get("job_id")) == job_id and owner.get("restart_count") == restart_count:
            return attempt
    return None
