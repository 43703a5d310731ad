"""Processes on any host take turns: a lease file that can be taken over after its deadline.

A lease saves work, nothing more: what is done under it must do no harm when two do it at once.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from slurmtrain.errors import StoreError
from slurmtrain.store.publish import read_json, replace, to_json

_SKEW_S = 300.0  # munge allows no more between hosts of a cluster
_MAX_S = 7 * 86400.0


class Lease:
    """This process's claim to whatever the file stands for."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._seconds = seconds
        self._token = secrets.token_hex(8)

    def acquire(self) -> str | None:
        """None when the lease is ours; otherwise who holds it (``host:pid``). Raises ``StoreError``."""
        held = read_json(self._path)
        now = time.time()
        if held is not None and held.get("token") != self._token and _is_valid(held, now):
            return f"{held.get('host', '?')}:{held.get('pid', '?')}"
        replace(self._path, to_json(self._record(now + self._seconds)))
        after = read_json(self._path) or {}
        return None if after.get("token") == self._token else f"{after.get('host', '?')}:{after.get('pid', '?')}"

    def give_back(self) -> None:
        """Let the next one take over at once."""
        held = read_json(self._path)
        if held is not None and held.get("token") == self._token:
            replace(self._path, to_json(self._record(0.0)))

    def _record(self, until: float) -> dict[str, object]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "token": self._token,
            "until": until,
            "seconds": self._seconds,
        }


def forget(path: Path, pid: int) -> None:
    """Give back the lease of a process of this host that was killed. Raises ``StoreError``."""
    held = read_json(path)
    if held is not None and (held.get("host"), held.get("pid")) == (socket.gethostname(), pid):
        replace(path, to_json({**held, "until": 0.0}))


def is_held(path: Path) -> bool:
    """Whether somebody has this lease now. Never raises."""
    try:
        held = read_json(path)
    except StoreError:
        return False
    return held is not None and _is_valid(held, time.time())


def _is_valid(held: dict[str, Any], now: float) -> bool:
    """Not past its deadline, nor further from it than a lease can be: a wrong clock must not lock it for ever."""
    until, seconds = _number(held.get("until")), min(_number(held.get("seconds")), _MAX_S)
    return now < until <= now + seconds + _SKEW_S


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
