"""A part of the test run that runs beside the others, in a process of its own; its output is shown at its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

CLEAN_UP_S = 120.0  # what it started it stops itself, when it is interrupted


class Beside:
    """One command whose output goes to a file until somebody waits for it.

    Used as a context: at the end of the block nothing of it runs any more.
    """

    def __init__(self, argv: Sequence[str], log: Path, *, cwd: Path, env: Mapping[str, str], timeout_s: float) -> None:
        self._log = log
        with log.open("wb") as sink:
            self._child = subprocess.Popen(
                argv, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        self._alarm = threading.Timer(timeout_s, self._end)
        self._alarm.daemon = True
        self._alarm.start()

    def __enter__(self) -> Beside:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def finish(self) -> tuple[int, list[str]]:
        """Wait for its end and show what it printed; (exit status, lines of its output)."""
        code = self._child.wait()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        print(*lines, sep="\n", flush=True)
        return code, lines

    def stop(self) -> None:
        """End it, where it still runs."""
        self._alarm.cancel()
        self._end()

    def _end(self) -> None:
        """Ask it to clean up, and kill what is left of its session."""
        if self._child.poll() is None:
            print(f"mini-slurm: interrupting what writes {self._log} ...", file=sys.stderr)
            self._child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(CLEAN_UP_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
