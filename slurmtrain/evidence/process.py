"""The process that takes a scene: beside a companion, the agent or a watcher, which never wait for the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from slurmtrain.errors import SlurmtrainError
from slurmtrain.evidence.request import Request, carry_out, read_request

_MAX_REQUEST = 4 << 20
_MAX_ANSWER = 500


class SceneProcess:
    """Started with its request. Raises ``OSError`` where it cannot be started.

    It holds none of our outputs open: srun waits for those to be closed, and a process that hangs on a dead file system
    would keep it for ever.
    """

    def __init__(self, agent: Path, request: Request) -> None:
        question = os.memfd_create("question", os.MFD_CLOEXEC)
        self._answer = os.memfd_create("answer", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(question), "wb") as stream:
                stream.write(request.to_json())
            os.lseek(question, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(agent), "scene"],
                stdin=question,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(self._answer)
            raise
        finally:
            os.close(question)

    def poll(self) -> str | None:
        """None while it runs; then why there is no scene, "" if there is one."""
        code = self._process.poll()
        if code is None:
            return None
        said = os.pread(self._answer, _MAX_ANSWER, 0).decode("utf-8", "replace").strip()
        return "" if code == 0 else said or f"its process ended with {code}"


def run_scene() -> int:
    """The process itself. Only its own budget ends it: Slurm's TERM means that there is still something to be kept."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    try:
        carry_out(read_request(sys.stdin.buffer.read(_MAX_REQUEST)))
    except (SlurmtrainError, OSError) as exc:
        sys.stdout.write(str(exc))
        return 1
    except (ValueError, TypeError, KeyError) as exc:
        sys.stdout.write(f"the request cannot be read ({exc})")
        return 2
    return 0
