"""What child processes print, within bounds of time and size. What they leave running is ended with them."""

from __future__ import annotations

import contextlib
import io
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Key = TypeVar("Key")
_CHUNK = 1 << 16
_LOOK_S = 0.05  # how often it is looked whether one has ended whose output another process holds open
_REAP_S = 0.05
_MOST_IN_ALL = 64 << 20  # bytes that are kept at once


class Ended(NamedTuple):
    """``exit_code`` is None for one that was ended by us: it took too long, or (``flooded``) printed too much."""

    output: bytes
    exit_code: int | None
    flooded: bool = False


@dataclass(slots=True)
class _Child(Generic[Key]):
    key: Key
    process: subprocess.Popen[bytes]
    order: memoryview  # what is still to be told
    output: bytearray = field(default_factory=bytearray)


def start(argv: Sequence[str], *, listens: bool = False) -> subprocess.Popen[bytes]:
    """A leader of a process group of its own, for ``gather``; ``listens`` to its standard input. Raises ``OSError``."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def gather(
    children: Mapping[Key, subprocess.Popen[bytes]], deadline: float, most: int, order: bytes = b""
) -> Iterator[tuple[Key, Ended]]:
    """Each of them when it has ended, at ``deadline`` (``time.monotonic()``) at the latest; of each ``most`` bytes.

    ``order`` is told to those that listen. Those that are left when nobody asks for more of them are ended.
    """
    with selectors.DefaultSelector() as selector:
        left = [_Child(key, process, memoryview(order)) for key, process in children.items()]
        for one in left:
            for pipe, event in ((one.process.stdout, selectors.EVENT_READ), (one.process.stdin, selectors.EVENT_WRITE)):
                if pipe is not None:
                    os.set_blocking(pipe.fileno(), False)
                    selector.register(pipe, event, one)
        try:
            while left:
                seconds = min(_LOOK_S, deadline - time.monotonic())
                for ready, event in selector.select(max(0.0, seconds)):
                    if not (_read(ready.data) if event == selectors.EVENT_READ else _tell(ready.data)):
                        selector.unregister(ready.fileobj)
                        _close(ready.fileobj)
                for one in list(left):
                    flooded = len(one.output) > most or _is_largest_of_too_much(one, left)
                    if flooded or seconds <= 0 or _has_exited(one.process):
                        left.remove(one)
                        _forget(one, selector)
                        yield one.key, _end(one, most, flooded=flooded)
        finally:
            for one in left:
                _end(one, 0, flooded=True)


def _forget(child: _Child[Key], selector: selectors.BaseSelector) -> None:
    for pipe in (child.process.stdout, child.process.stdin):
        if pipe is not None and not pipe.closed and pipe in selector.get_map():
            selector.unregister(pipe)


def _tell(child: _Child[Key]) -> bool:
    """Whether there is more to tell."""
    pipe = child.process.stdin
    assert pipe is not None  # noqa: S101 - it is ready
    try:
        child.order = child.order[os.write(pipe.fileno(), child.order[:_CHUNK]) :]
    except BlockingIOError:
        return True
    except OSError:  # it does not listen any more
        return False
    return len(child.order) > 0


def _is_largest_of_too_much(one: _Child[Key], all_of_them: Sequence[_Child[Key]]) -> bool:
    sizes = [len(child.output) for child in all_of_them]
    return sum(sizes) > _MOST_IN_ALL and len(one.output) == max(sizes)


def _read(child: _Child[Key]) -> bool:
    """Whether there may be more."""
    pipe = child.process.stdout
    if pipe is None or pipe.closed:
        return False
    try:
        chunk = os.read(pipe.fileno(), _CHUNK)
    except BlockingIOError:
        return False
    child.output += chunk
    return bool(chunk)


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """It is left as a zombie: so long nobody else gets the number of its group."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _end(child: _Child[Key], most: int, *, flooded: bool) -> Ended:
    process = child.process
    exited = _has_exited(process)
    end_group(process)
    while exited and not flooded and _read(child):
        flooded = len(child.output) > most
    for pipe in (process.stdout, process.stdin):
        _close(pipe)
    code = None
    with contextlib.suppress(subprocess.TimeoutExpired):  # what hangs in the kernel does not die
        code = process.wait(_REAP_S)
    return Ended(bytes(child.output), code if exited and not flooded else None, flooded)


def _close(pipe: object) -> None:
    if isinstance(pipe, io.IOBase):
        pipe.close()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill it and what it started, as far as that is still in its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
