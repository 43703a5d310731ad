"""Texts of Slurm 22.05 to 26.05 (the errors' own words, src/common/slurm_errno.c) → our errors."""

from __future__ import annotations

import pytest

from slurmtrain.errors import (
    HostUnreachableError,
    JobNotFoundError,
    SlurmBusyError,
    SlurmRefusedError,
    SlurmUnavailableError,
)
from slurmtrain.hosts.local import CommandResult
from slurmtrain.slurm.failures import Failure, build_error, classify_failure, sentence_of


def failed(stderr: str, exit_code: int = 1, *, timed_out: bool = False) -> CommandResult:
    return CommandResult(("scontrol", "x"), exit_code, "", stderr, timed_out)


SUBMIT = "sbatch: error: Batch job submission failed: "
POLICY = f"{SUBMIT}Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
KINDS: dict[Failure, type[Exception]] = {
    Failure.UNAVAILABLE: SlurmUnavailableError,
    Failure.BUSY: SlurmBusyError,
    Failure.JOB_UNKNOWN: JobNotFoundError,
}  # everything else is SlurmRefusedError


@pytest.mark.parametrize(
    ("kind", "stderr"),
    [
        (Failure.UNAVAILABLE, "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
        (Failure.UNAVAILABLE, "squeue: error: slurm_receive_msg: Socket timed out on send/recv operation"),
        (Failure.UNAVAILABLE, "scontrol: error: Connection timed out establishing"),
        (Failure.UNAVAILABLE, f"{SUBMIT}Socket timed out on send/recv operation"),
        (Failure.UNAVAILABLE, f"{SUBMIT}Unable to contact slurm controller (connect failure)"),
        (Failure.UNAVAILABLE, "sacct: error: Problem talking to the database: Connection refused"),
        (Failure.UNAVAILABLE, 'scontrol: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"'),
        (Failure.UNAVAILABLE, "squeue: fatal: Could not establish a configuration source"),
        (Failure.UNAVAILABLE, "scontrol: error: slurm_requeue2: Unexpected message received"),
        (Failure.BUSY, f"sbatch: error: AssocMaxSubmitJobLimit\n{POLICY}"),
        (Failure.BUSY, f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{POLICY}"),
        (Failure.BUSY, "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"),
        (Failure.BUSY, f"{SUBMIT}MaxJobCount limit reached"),
        (Failure.BUSY, "Job can not be altered now, try again later for job 5"),
        (Failure.REFUSED, f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{POLICY}"),
        (Failure.REFUSED, f"{SUBMIT}Invalid partition name specified"),
        (Failure.REFUSED, f"{SUBMIT}Invalid job array specification"),
        (Failure.REFUSED, f"{SUBMIT}Unspecified error"),
        (Failure.REFUSED, "allocation failure: Requested node configuration is not available"),
        (Failure.REFUSED, "Access/permission denied for job 5"),
        (Failure.REFUSED, "Requested operation is presently disabled for job 5"),
        (Failure.REFUSED, "Only batch jobs are accepted or processed for job 5"),
        (Failure.REFUSED, "Job is no longer pending execution for job 5"),
        (Failure.JOB_UNKNOWN, "Invalid job id specified for job 5"),
        (Failure.JOB_UNKNOWN, "slurm_load_jobs error: Invalid job id specified"),
        (Failure.JOB_UNKNOWN, "5_7: Invalid job id specified"),
        (Failure.JOB_ENDED, "Job has already finished for job 5"),
        (
            Failure.JOB_ENDED,
            "scancel: error: Kill job error on job step id 5.0: Job/step already completing or completed",
        ),
        (Failure.ALREADY_PENDING, "Job is pending execution for job 5"),
        (Failure.NO_ACCOUNTING, "Slurm accounting storage is disabled"),
        (Failure.UNKNOWN, "something nobody ever saw"),
    ],
)
def test_texts(kind: Failure, stderr: str) -> None:
    result = failed(stderr)
    assert classify_failure(result) is kind
    assert type(build_error(result, "do it")) is KINDS.get(kind, SlurmRefusedError)


def test_a_time_out_is_unknown_not_a_no() -> None:
    error = build_error(failed("", -9, timed_out=True), "ask Slurm for its jobs")
    assert type(error) is SlurmUnavailableError
    assert str(error) == "cannot ask Slurm for its jobs: no answer within the time-out"


def test_a_time_out_while_sbatch_waits_for_room_is_busy() -> None:
    text = "sbatch: error: Slurm job queue full, sleeping and retrying"
    assert type(build_error(failed(text, -9, timed_out=True), "submit x")) is SlurmBusyError


def test_a_missing_command() -> None:
    assert type(build_error(failed("bash: sbatch: command not found", 127), "submit x")) is HostUnreachableError


def test_the_sentence_is_one_bounded_line_without_control_characters() -> None:
    hostile = "scontrol: error: \x1b[31mred\x07\u202e\n" + "x" * 5000 + "\nscontrol: error: \x1b[31mred\x07\u202e\n"
    sentence = sentence_of(failed(hostile))
    assert sentence.startswith("[31mred")
    assert len(sentence) <= 400
    assert sentence.isprintable()


def test_silence_is_said() -> None:
    assert sentence_of(failed("", 2)) == "scontrol ended with exit code 2 and said nothing"


def test_a_hint_says_what_to_do() -> None:
    error = build_error(failed("Requested operation is presently disabled for job 5"), "requeue job 5")
    assert "--requeue" in str(error)
