"""What is run, with which environment, against a host that only writes down and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from slurmtrain.core.jobid import JobId
from slurmtrain.errors import SlurmRefusedError, SlurmUnavailableError
from slurmtrain.hosts.local import CommandResult, LocalHost
from slurmtrain.slurm import commands
from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.slurm.environment import query_environment, scrub, submit_environment

INSIDE_A_JOB = {
    "PATH": "/usr/bin",
    "HOME": "/home/u",
    "TZ": "Asia/Tokyo",
    "SLURM_CONF": "/run/slurm/conf/slurm.conf",
    "SLURM_JWT": "token",
    "SLURM_JOB_ID": "5",
    "SLURM_JOBID": "5",
    "SLURM_NTASKS": "8",
    "SBATCH_ACCOUNT": "old",
    "SQUEUE_FORMAT": "%j",
    "SACCT_FORMAT": "user",
    "SLURMTRAIN_RUN_DIR": "/runs/x",
}


class WrittenDown:
    """A host that answers with prepared results."""

    def __init__(self, *results: CommandResult) -> None:
        self.results = list(results)
        self.ran: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> CommandResult:
        assert timeout_s >= 60
        self.ran.append((tuple(argv), dict(env or {})))
        return self.results.pop(0) if self.results else CommandResult(tuple(argv), 0, "", "")


def test_inside_a_job_slurm_finds_its_configuration_and_nothing_else_of_the_job() -> None:
    kept = scrub(INSIDE_A_JOB)
    assert set(kept) == {"PATH", "HOME", "TZ", "SLURM_CONF", "SLURM_JWT", "SLURMTRAIN_RUN_DIR"}


def test_a_job_inherits_the_users_time_zone_and_language_but_queries_do_not() -> None:
    assert submit_environment(INSIDE_A_JOB, {"A": "b"})["TZ"] == "Asia/Tokyo"
    assert "LC_ALL" not in submit_environment(INSIDE_A_JOB, None)
    assert submit_environment(INSIDE_A_JOB, {"SLURM_EXPORT_ENV": "ALL"})["SLURM_EXPORT_ENV"] == "ALL"
    asked = query_environment(INSIDE_A_JOB)
    assert (asked["TZ"], asked["LC_ALL"], asked["SLURM_TIME_FORMAT"]) == ("UTC", "C", "%s")


def test_one_job_is_asked_for_alone_and_many_with_one_query_of_the_users() -> None:
    assert commands.build_squeue(JobId(5, 2))[:3] == ["squeue", "-j", "5_2"]
    assert commands.build_squeue()[:2] == ["squeue", "--me"]


def test_only_fields_that_every_version_has_and_no_users_text() -> None:
    asked = {name.lower() for name in commands.SQUEUE_FIELDS}
    assert not asked & {"excnodes", "name", "comment", "workdir", "command", "feature"}
    assert commands.SQUEUE_FIELDS[-1] == "Reason"
    assert not {"restarts", "sluid", "failednode", "jobname", "comment", "workdir"} & {
        name.lower() for name in commands.SACCT_FIELDS
    }


def test_requeue_and_update() -> None:
    host = WrittenDown()
    client = CliSlurmClient(host, environ=INSIDE_A_JOB)
    client.requeue(JobId(5), only_running=True)
    client.requeue(JobId(5, 1), only_running=False)
    client.update_pending(JobId(5), start_after=timedelta(seconds=8.4), exclude="n[1-2]")
    client.update_pending(JobId(5), start_after=timedelta(0))
    client.update_pending(JobId(5), start_at=datetime(2026, 11, 29, 21, 5, 7, tzinfo=timezone(timedelta(hours=1))))
    client.update_pending(JobId(5), exclude="")
    client.update_pending(JobId(5))
    assert [argv for argv, _ in host.ran] == [
        ("scontrol", "requeue", "Incomplete", "5"),
        ("scontrol", "requeue", "5_1"),
        ("scontrol", "update", "JobId=5", "StartTime=now+8", "ExcNodeList=n[1-2]"),
        ("scontrol", "update", "JobId=5", "StartTime=now+2"),
        ("scontrol", "update", "JobId=5", "StartTime=2026-11-29T20:05:07"),
        ("scontrol", "update", "JobId=5", "ExcNodeList="),
    ]
    assert all("SLURM_JOB_ID" not in env and env["SLURM_CONF"] for _, env in host.ran)
    assert all(env["TZ"] == "UTC" for _, env in host.ran), "or the moment would be another one"


def test_history_is_bounded_by_argument_length_and_asks_in_utc() -> None:
    host = WrittenDown()
    client = CliSlurmClient(host, environ={})
    since = datetime(2026, 11, 29, 18, 0, tzinfo=timezone(timedelta(hours=3)))
    client.history([JobId(number) for number in range(1, 5001)], since=since)
    assert len(host.ran) == 3
    assert all(len(" ".join(argv)) < 100_000 for argv, _ in host.ran)
    argv = host.ran[0][0]
    assert argv[argv.index("-S") + 1] == "2026-11-29T15:00:00"


def test_nothing_asked_for_asks_nothing() -> None:
    host = WrittenDown()
    client = CliSlurmClient(host, environ={})
    assert not client.observe([]).jobs
    assert client.history([]) == []
    assert host.ran == []


def test_a_submission_that_printed_an_id_has_happened_whatever_else_was_said() -> None:
    answer = CommandResult(("sbatch",), 1, "88\n", "sbatch: error: something afterwards")
    assert CliSlurmClient(WrittenDown(answer), environ={}).submit(Path("x.sh")) == JobId(88)


def test_a_submission_without_an_id_is_unknown() -> None:
    answer = CommandResult(("sbatch",), 0, "", "")
    with pytest.raises(SlurmUnavailableError, match="cannot tell whether"):
        CliSlurmClient(WrittenDown(answer), environ={}).submit(Path("x.sh"))


def test_a_question_that_failed_for_an_unknown_reason_says_nothing_about_jobs() -> None:
    answer = CommandResult(("squeue",), 1, "", "squeue: error: a new message")
    with pytest.raises(SlurmUnavailableError):
        CliSlurmClient(WrittenDown(answer), environ={}).observe()


def test_an_act_that_failed_for_an_unknown_reason_was_refused() -> None:
    answer = CommandResult(("scontrol",), 1, "", "scontrol: a new message")
    with pytest.raises(SlurmRefusedError, match="a new message"):
        CliSlurmClient(WrittenDown(answer), environ={}).release(JobId(5))


def test_a_script_that_looks_like_an_option() -> None:
    assert commands.build_sbatch(Path("-rf"))[-1] == "./-rf"


def test_a_machine_without_slurm(tmp_path: Path) -> None:
    client = CliSlurmClient(LocalHost(), environ={"PATH": str(tmp_path)})
    with pytest.raises(SlurmUnavailableError, match="squeue"):
        client.observe()
