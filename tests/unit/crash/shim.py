"""The machine as actors see it: their own clock, pid and host, files with the faults of a network file system.

Everything is dispatched on the calling thread: what is no actor (the test, pytest) gets the real thing.
"""

from __future__ import annotations

import errno
import io
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from actors import Actor, Killed, current


@dataclass
class StoreFaults:
    """What the store does to its users. Probabilities are per operation; ``full`` are (from, to, errno) windows."""

    late_s: float = 0.0  # so long another host's new files stay invisible
    no_links: bool = False
    link_lies: float = 0.0  # link(2) is made and reported as failed
    mkdir_lies: float = 0.0  # mkdir(2) is made and reported as EEXIST (a retransmission)
    rename_lies: float = 0.0  # rename(2) is made and reported as ENOENT
    stale: float = 0.0  # ESTALE on opening or listing
    full: tuple[tuple[float, float, int], ...] = ()


class Machine:
    """Patches the standard library for the time of a test. ``root`` is the store: only files in it have points."""

    def __init__(self, root: str, rng: random.Random) -> None:
        self.root, self.rng = root, rng
        self.faults = StoreFaults()
        self.popen: Callable[..., Any] = subprocess.Popen
        self.kill: Callable[[Actor, int, int], None] = lambda _actor, _pid, _number: None
        self._made: dict[str, tuple[float, str]] = {}  # path → when, by which host
        self._known: set[tuple[str, str]] = set()  # (path, host): this host has learnt of it
        self._fds: dict[int, str] = {}

    def reset(self, root: str, rng: random.Random) -> None:
        """Begin anew with another store."""
        self.__init__(root, rng)  # type: ignore[misc]

    # -- patching ----------------------------------------------------------------------------------------------------

    def install(self, patch: pytest.MonkeyPatch) -> None:
        self._patch_process(patch)
        wrapped = {
            name: self._wrap(name, getattr(os, name))
            for name in ("mkdir", "link", "rename", "replace", "unlink", "rmdir", "stat", "listdir", "utime", "open")
        }
        for name, function in wrapped.items():
            patch.setattr(os, name, function)
        patch.setattr(io, "open", opened := self._wrap("open_stream", io.open))
        patch.setattr("builtins.open", opened)
        patch.setattr(os, "write", self._wrap_write(os.write))
        patch.setattr(os, "fsync", self._wrap_fsync(os.fsync))
        accessor = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 binds os's functions at import
        if accessor is not None:
            for name, function in {**wrapped, "open": opened}.items():
                if hasattr(accessor, name):
                    patch.setattr(accessor, name, staticmethod(function))

    def _patch_process(self, patch: pytest.MonkeyPatch) -> None:
        def dispatch(module: Any, name: str, mine: Callable[..., Any]) -> None:
            real = getattr(module, name)

            def function(*args: Any, **kwargs: Any) -> Any:
                actor = current()
                return real(*args, **kwargs) if actor is None else mine(actor, *args, **kwargs)

            patch.setattr(module, name, function)

        dispatch(time, "time", lambda actor: actor.stage.now())
        dispatch(time, "monotonic", lambda actor: actor.stage.now())
        dispatch(time, "sleep", lambda actor, seconds: actor.block(seconds))
        dispatch(os, "getpid", lambda actor: actor.pid)
        dispatch(os, "getppid", lambda actor: actor.parent_pid)
        dispatch(os, "kill", lambda *args: self.kill(*args))  # noqa: PLW0108 - replaced later
        dispatch(socket, "gethostname", lambda actor: actor.host)
        dispatch(signal, "signal", _set_handler)
        dispatch(subprocess, "Popen", lambda *args, **kwargs: self.popen(*args, **kwargs))  # noqa: PLW0108

    # -- files -------------------------------------------------------------------------------------------------------

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            actor = current()
            if actor is None or not args or isinstance(args[0], int):
                return real(*args, **kwargs)
            path = os.fspath(args[0])
            if not isinstance(path, str) or not path.startswith(self.root):
                return real(*args, **kwargs)
            return self._operate(actor, name, real, path, args, kwargs)

        return function

    def _operate(self, actor: Actor, name: str, real: Any, path: str, args: Any, kwargs: Any) -> Any:
        target = os.fspath(args[1]) if name in {"link", "rename", "replace"} else path
        writes = name in {"mkdir", "link", "rename", "replace", "unlink", "rmdir", "utime"} or _creates(name, args)
        actor.point("write" if writes else "read", f"{name} {target.removeprefix(self.root)}")
        if not writes:
            self._check_visible(actor, path)
            ours = "/checkpoints" not in path  # a checkpoint that cannot be read is passed over: no fault of ours
            if ours and name in {"open", "open_stream", "listdir"} and self._chance(self.faults.stale):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        elif name not in {"unlink", "rmdir"}:
            self._check_room(actor, path)
        if name == "link" and self.faults.no_links:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), path)
        fresh = writes and not _lies_there(target)
        try:
            answer = real(*args, **kwargs)
        except FileExistsError:
            if name == "link":
                self._learn(actor, target)  # the server's answer replaces what the client believed
            raise
        if fresh and _lies_there(target):
            self._made[target] = (actor.stage.now(), actor.host)
        return self._tell(actor, name, path, answer)

    def _tell(self, actor: Actor, name: str, path: str, answer: Any) -> Any:
        if name == "listdir":
            return [entry for entry in sorted(answer) if self._is_visible(actor, f"{path}/{entry}")]
        if name == "open":
            self._fds[answer] = path
        if name == "link" and self._chance(self.faults.link_lies):
            code = self.rng.choice((errno.EEXIST, errno.EIO))
            raise OSError(code, os.strerror(code), path)
        if name == "mkdir" and self._chance(self.faults.mkdir_lies):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if name in {"rename", "replace"} and self._chance(self.faults.rename_lies):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return answer

    def _wrap_write(self, real: Any) -> Any:
        def write(descriptor: int, data: Any) -> int:
            actor = current()
            path = self._fds.get(descriptor) if actor is not None else None
            if actor is None or path is None:
                return int(real(descriptor, data))
            try:
                actor.point("write", f"write {path.removeprefix(self.root)}")
                self._check_room(actor, path)
            except (Killed, OSError):
                if len(data) > 1 and self.rng.random() < 0.5:
                    real(descriptor, bytes(data)[: self.rng.randrange(1, len(data))])  # a torn tail
                raise
            return int(real(descriptor, data))

        return write

    def _wrap_fsync(self, real: Any) -> Any:
        def fsync(descriptor: int) -> None:
            actor = current()
            path = self._fds.get(descriptor) if actor is not None else None
            if actor is None or path is None:
                real(descriptor)
            else:
                actor.point("write", f"fsync {path.removeprefix(self.root)}")

        return fsync

    def _check_room(self, actor: Actor, path: str) -> None:
        for start, end, code in self.faults.full:
            if start <= actor.stage.now() < end:
                raise OSError(code, os.strerror(code), path)

    def _check_visible(self, actor: Actor, path: str) -> None:
        if not self._is_visible(actor, path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def _is_visible(self, actor: Actor, path: str) -> bool:
        if not self.faults.late_s:
            return True
        while len(path) > len(self.root):
            made = self._made.get(path)
            is_late = made and made[1] != actor.host and actor.stage.now() < made[0] + self.faults.late_s
            if is_late and (path, actor.host) not in self._known:
                return False
            path = path.rpartition("/")[0]
        return True

    def _learn(self, actor: Actor, path: str) -> None:
        self._known.add((path, actor.host))

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability


def _creates(name: str, args: Any) -> bool:
    if name == "open":
        return bool(args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)) if len(args) > 1 else False
    if name == "open_stream":
        mode = args[1] if len(args) > 1 else "r"
        return any(letter in mode for letter in "wax+")
    return False


_lexists_stat = os.lstat


def _lies_there(path: str) -> bool:
    try:
        _lexists_stat(path)
    except OSError:
        return False
    return True


def _set_handler(actor: Actor, number: int, handler: Any) -> Any:
    before = actor.handlers.get(int(number), signal.SIG_DFL)
    actor.handlers[int(number)] = handler
    return before
