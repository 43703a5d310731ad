"""What Slurm's commands say when they fail → our errors.

Texts: ``src/common/slurm_errno.c``, ``src/sbatch/sbatch.c`` and ``src/sacct/options.c`` of 20.11 to 26.05.
"""

from __future__ import annotations

import re
from enum import Enum

from slurmtrain.errors import (
    HostUnreachableError,
    JobNotFoundError,
    SlurmBusyError,
    SlurmRefusedError,
    SlurmtrainError,
    SlurmUnavailableError,
)
from slurmtrain.hosts.local import CommandResult


class Failure(Enum):
    """Kinds of failure of a Slurm command."""

    UNAVAILABLE = "Slurm did not answer"
    BUSY = "not now"
    JOB_UNKNOWN = "Slurm does not know the job"
    JOB_ENDED = "the job has ended"
    ALREADY_PENDING = "the job is in the queue"
    NO_ACCOUNTING = "there is no accounting"
    NO_COMMAND = "the command does not exist"
    REFUSED = "Slurm said no"
    UNKNOWN = "a text we do not know"


# First match wins. A limit's name (AssocMaxSubmitJobLimit) stands on a line of its own before "Job violates …".
_TEXTS: tuple[tuple[Failure, str], ...] = (
    (Failure.NO_ACCOUNTING, r"Slurm accounting storage is disabled"),
    (Failure.ALREADY_PENDING, r"Job is pending execution"),
    (
        Failure.BUSY,
        r"(?:Assoc|QOS)(?:Max|Grp)Submit\w*|temporarily unable to accept job|Slurm job queue full"
        r"|Job creation temporarily disabled|Unable to create job record, try again|MaxJobCount limit reached"
        r"|System submissions disabled|Job can not be altered now, try again later|the DB index is being set"
        r"|PrologSlurmctld is still running|Rate limit exceeded|Required ports are in use|Requested nodes are busy"
        r"|Required partition not available|Partition in DOWN state|Requested reservation not usable now"
        r"|Waiting for burst buffer|Resource temporarily unavailable",
    ),
    (
        Failure.UNAVAILABLE,
        r"Unable to contact slurm|Unable to connect to database|Problem talking to the database|Socket timed out"
        r"|Connection timed out|Connection refused|Connection reset|No route to host|Network is unreachable"
        r"|Connection rejected|Connection forced closed|Communication connection failure|Communication shutdown"
        r"|Message (?:send|receive) failure|Zero Bytes were transmitted|Unexpected missing socket"
        r"|Header lengths are longer|Insane message length|Unexpected message received|standby mode"
        r"|Protocol authentication error|authentication error|Authentication (?:failure|credential)"
        r"|Invalid authentication credential|Munge (?:en|de)code failed|munged|TLS missing"
        r"|Incompatible versions of client and server|Could not establish a configuration source|DNS SRV lookup failed"
        r"|Unable to process configuration file|Can't find an address|slurm\.conf|Write would block|Read would block"
        r"|Resource deadlock|Cannot allocate memory|Too many open files",
    ),
    (Failure.JOB_UNKNOWN, r"Invalid job id specified"),
    (
        Failure.JOB_ENDED,
        r"Job has already finished|Job/step already completing or completed|Job step not running|Job is not running"
        r"|Job is not pending nor running|Job is completed",
    ),
    (
        Failure.REFUSED,
        r"Access/permission denied|Requested operation is presently disabled|Only batch jobs are accepted"
        r"|Job is no longer pending execution|Job has already started|Job violates accounting/QOS policy"
        r"|Batch job submission failed|allocation failure|Invalid |invalid |unrecognized option|Unable to open file"
        r"|not permitted|Requested node configuration is not available|No changes specified",
    ),
    (Failure.NO_COMMAND, r"command not found|No such file or directory$"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.MULTILINE)) for kind, pattern in _TEXTS)
_PREFIX = re.compile(
    r"^(?:sbatch|squeue|sacct|scontrol|scancel|sinfo|slurm_\w+ error)(?:: (?:error|fatal))?: ", re.ASCII
)
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

_HINTS = (
    ("presently disabled", "the job was submitted without --requeue, so Slurm does not put it back into the queue"),
    ("Only batch jobs", "only jobs submitted with sbatch can be requeued"),
    ("Access/permission denied", "it belongs to somebody else, or an administrator (or JobHoldMaxRequeue) holds it"),
    ("Invalid partition name", "see `sinfo -s` for the partitions"),
    ("Invalid account or account/partition", "see `sacctmgr show assoc user=$USER` for your accounts"),
)


def classify_failure(result: CommandResult) -> Failure:
    """Which kind of failure this is; call it only for a command that did not succeed."""
    if result.timed_out:
        busy = _COMPILED[2][1].search(result.stderr)
        return Failure.BUSY if busy else Failure.UNAVAILABLE
    if result.exit_code == 127:
        return Failure.NO_COMMAND
    text = f"{result.stderr}\n{result.stdout}"
    for kind, pattern in _COMPILED:
        if pattern.search(text):
            return kind
    return Failure.UNAVAILABLE if result.exit_code < 0 else Failure.UNKNOWN


def sentence_of(result: CommandResult) -> str:
    """What the command said, as one bounded line without control characters."""
    if result.timed_out:
        return "no answer within the time-out"
    lines = (_PREFIX.sub("", line.strip()) for line in (result.stderr or result.stdout).splitlines())
    said = dict.fromkeys(_UNSAFE.sub(" ", line).strip() for line in lines if line)
    return "; ".join(said)[:400] or f"{result.argv[0]} ended with exit code {result.exit_code} and said nothing"


def build_error(result: CommandResult, doing: str) -> SlurmtrainError:
    """The error for a failed command. ``doing`` completes "cannot …"; an unknown text is Slurm's no."""
    kind = classify_failure(result)
    said = sentence_of(result)
    hint = next((f" ({text})" for part, text in _HINTS if part in said), "")
    message = f"cannot {doing}: {said}{hint}"
    if kind is Failure.BUSY:
        return SlurmBusyError(message)
    if kind is Failure.UNAVAILABLE:
        return SlurmUnavailableError(message)
    if kind is Failure.NO_COMMAND:
        return HostUnreachableError(f"cannot {doing}: {result.argv[0]} is not on the PATH there")
    if kind is Failure.JOB_UNKNOWN:
        return JobNotFoundError(message)
    return SlurmRefusedError(message)
