"""Running a command on this machine: an argument list, a time-out, and nothing that can hang for ever."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from slurmtrain.errors import HostUnreachableError
from slurmtrain.hosts.children import end_group


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. ``exit_code`` is negative for a signal; ``timed_out`` says that it was ended by us."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False


class Host(Protocol):
    """A place where Slurm's commands run."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CommandResult:
        """Run ``argv`` to its end or its time-out; raises ``HostUnreachableError`` when it cannot be started."""
        ...


class LocalHost:
    """The machine we are on. Output is decoded as UTF-8, undecodable bytes replaced."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CommandResult:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(env) if env is not None else None,
                cwd=cwd,
                start_new_session=True,  # its own process group, so that a time-out ends its children too
            )
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
            raise HostUnreachableError(f"cannot run {argv[0]!r} here: {reason}") from exc
        timed_out = False
        try:
            out, err = process.communicate(stdin.encode() if stdin is not None else None, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            end_group(process)
            out, err = process.communicate()
        return CommandResult(
            tuple(argv), process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"), timed_out
        )

    def __str__(self) -> str:
        return "this machine"
