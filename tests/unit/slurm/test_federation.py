"""A job that another cluster of a federation runs, as 22.05 shows it: `squeue -j` and `sacct` of the cluster of the
submission say REVOKED, also in the job itself, and only wider questions tell what it really does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slurmtrain.core.jobid import JobId
from slurmtrain.hosts.local import CommandResult
from slurmtrain.slurm.cli_client import CliSlurmClient
from slurmtrain.slurm.commands import SACCT_FIELDS

JOB = JobId(134217733)
_TIMES = "2026-11-30T01:02:35|2026-11-30T01:02:35|2026-11-30T01:02:36|2026-11-30T02:02:36|N/A|1:00:00"
REVOKED = f"134217733|134217733|N/A|N/A|N/A|4242|REVOKED|0|1||1|0|{_TIMES}||batch|4294901755|(null)|None|\n"
RUNNING = f"134217733|134217733|N/A|N/A|N/A|4242|RUNNING|0|1|n1|1|0|{_TIMES}||batch|4294901749|(null)|None|\n"


class Federation:
    """Answers as the clusters do; written down is which words came."""

    def __init__(self, narrow: str, wide: str) -> None:
        self._narrow, self._wide = narrow, wide
        self.asked: list[Sequence[str]] = []

    def run(self, argv: Sequence[str], **_more: Any) -> CommandResult:
        self.asked.append(argv)
        narrow = "--federation" not in argv if argv[0] == "sacct" else "-j" in argv
        return CommandResult(tuple(argv), 0, self._narrow if narrow else self._wide, "")


@pytest.mark.parametrize("uid", [0, 4242])
def test_a_job_that_runs_elsewhere_is_running(monkeypatch: pytest.MonkeyPatch, uid: int) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    seen = CliSlurmClient(Federation(REVOKED, RUNNING)).observe([JOB])
    assert (str(seen.jobs[JOB].state), seen.jobs[JOB].nodes) == ("RUNNING", "n1")


def test_a_job_that_no_list_shows_stays_revoked_and_any_other_costs_one_question() -> None:
    assert str(CliSlurmClient(Federation(REVOKED, "")).observe([JOB]).jobs[JOB].state) == "REVOKED"
    host = Federation(RUNNING, "")
    assert str(CliSlurmClient(host).observe([JOB]).jobs[JOB].state) == "RUNNING"
    assert len(host.asked) == 1


def _row(state: str, nodes: str, start: str) -> str:
    values = {"JobID": "134217733", "JobIDRaw": "134217733", "State": state, "ExitCode": "0:0", "NodeList": nodes}
    return "|".join({**values, "Submit": start, "Start": start, "End": start}.get(name, "") for name in SACCT_FIELDS)


def test_accounting_has_the_executions_of_the_other_cluster_and_none_of_the_submissions_own() -> None:
    first, second = "2026-11-30T01:02:36", "2026-11-30T01:02:49"
    revoked = [_row("REVOKED", "None assigned", first), _row("REVOKED", "None assigned", second)]
    ran = [_row("REQUEUED", "n1", first), _row("CANCELLED by 4242", "n1", second)]
    every = [revoked[0], ran[0], revoked[1], ran[1]]
    records = CliSlurmClient(Federation("\n".join(revoked), "\n".join(every))).history([JOB])
    assert [str(record.state) for record in records] == ["REQUEUED", "CANCELLED"]
    assert records[-1].cancelled_by == 4242
