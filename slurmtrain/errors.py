"""Every error a user may meet. Each says what happened, on what, and what happens next; none shows a traceback.

``exit_code`` is what the command line exits with (see ``docs/exit-codes.md``).
"""

from __future__ import annotations

from typing import ClassVar


class SlurmtrainError(Exception):
    """The operation failed."""

    exit_code: ClassVar[int] = 1


class UsageError(SlurmtrainError):
    """The command line does not make sense."""

    exit_code = 2


class NotFoundError(SlurmtrainError):
    """A run, a file or a job that was named does not exist."""

    exit_code = 3


class SlurmUnavailableError(SlurmtrainError):
    """Slurm, or the host its commands run on, did not answer: nothing is known, trying again may help."""

    exit_code = 4


class SlurmBusyError(SlurmUnavailableError):
    """Slurm is alive and says: not now (a limit on submissions, a controller too busy)."""


class HostUnreachableError(SlurmUnavailableError):
    """The host that commands should run on cannot be reached, or the command there does not exist."""


class SlurmRefusedError(SlurmtrainError):
    """Slurm understood the request and said no; asking again gives the same answer."""


class JobNotFoundError(SlurmRefusedError):
    """Slurm does not know this job (any more)."""


class SpecError(SlurmtrainError):
    """A job file or a setting is wrong; the message names the key path and what was expected."""

    exit_code = 5


class RefusedError(SlurmtrainError):
    """Doing this could lose or endanger something, so it was not done."""

    exit_code = 6


class StoreError(SlurmtrainError):
    """The run directory cannot be read or written."""


class RemoteError(SlurmtrainError):
    """Remote storage said no, or cannot be used from here; asking again soon gives the same answer."""


class RemoteBusyError(RemoteError):
    """Remote storage did not answer, or said: not now. Nothing is lost, trying again may help."""

    exit_code = 4
