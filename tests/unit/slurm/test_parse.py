"""Real output of Slurm 22.05 (tests/data/slurm/22.05) and hostile or torn text."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import BaseState, StateFlag, is_held, is_running, is_waiting
from slurmtrain.slurm import commands, fields, parse
from slurmtrain.slurm.client import JobRecord

DATA = Path(__file__).parents[2] / "data" / "slurm" / "22.05"
AT = datetime.fromtimestamp(1795973157, timezone.utc)


def text(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def jobs() -> dict[JobId, JobRecord]:
    return {record.job_id: record for record in parse.parse_squeue(text("squeue.txt"))}


class TestSqueue:
    def test_every_row_is_read(self, jobs: dict[JobId, JobRecord]) -> None:
        assert len(jobs) == len(text("squeue.txt").splitlines())

    def test_a_running_job_with_a_hostile_name(self, jobs: dict[JobId, JobRecord]) -> None:
        job = jobs[JobId(146)]
        assert is_running(job.state)
        assert (job.nodes, job.node_count, job.partition) == ("slurmlayer1", 1, "batch")
        assert (job.time_limit, job.start_time) == (timedelta(minutes=30), AT)
        assert job.end_time == AT + timedelta(minutes=30)
        assert (job.reason, job.dependency, job.required_nodes) == ("", "", "")
        assert (job.exit_code, job.signal, job.preempt_time) == (None, None, None)
        assert (job.user_id, job.requeue, job.raw_job_id) == (4242, True, 146)

    def test_a_node_list_longer_than_any_column(self, jobs: dict[JobId, JobRecord]) -> None:
        assert jobs[JobId(157)].nodes == "slurmlayer[3-5]"

    @pytest.mark.parametrize(("job", "exit_code", "signal"), [(148, 7, None), (149, 0, 9), (150, 137, None)])
    def test_how_a_job_ended(self, jobs: dict[JobId, JobRecord], job: int, exit_code: int, signal: int | None) -> None:
        record = jobs[JobId(job)]
        assert record.state.base is BaseState.FAILED
        assert (record.exit_code, record.signal) == (exit_code, signal)

    def test_array_tasks_and_het_components(self, jobs: dict[JobId, JobRecord]) -> None:
        tasks = {job_id.array_task: jobs[job_id] for job_id in jobs if job_id.base == 147}
        assert sorted(tasks) == [0, 1, 2, 3]
        assert [tasks[number].raw_job_id for number in (0, 1, 2, 3)] == [158, 159, 147, 147]
        assert tasks[2].reason == "JobArrayTaskLimit"
        assert {JobId(151), JobId(151, None, 1)} <= set(jobs)

    def test_held_and_delayed(self, jobs: dict[JobId, JobRecord]) -> None:
        held, delayed = jobs[JobId(153)], jobs[JobId(154)]
        assert (held.reason, held.begin_time, held.priority, held.requeue) == ("JobHeldUser", None, 0, False)
        assert (held.dependency, held.required_nodes) == ("afterany:146(unfulfilled)", "slurmlayer2")
        assert (delayed.reason, delayed.begin_time) == ("BeginTime", AT + timedelta(seconds=600))
        assert is_waiting(held.state)
        assert not is_held(held.state)  # squeue prints PENDING; only the reason tells

    def test_completing_hides_what_comes_next(self, jobs: dict[JobId, JobRecord]) -> None:
        cancelled, requeued = jobs[JobId(155)], jobs[JobId(156)]
        for job in (cancelled, requeued):
            assert (job.state.base, job.state.flags) == (None, frozenset({StateFlag.COMPLETING}))
            assert job.exit_code is None
        assert (cancelled.restart_count, requeued.restart_count) == (0, 1)

    @pytest.mark.parametrize("cut", [0, 1, 10, 60, 100])
    def test_a_torn_row_is_left_out(self, cut: int) -> None:
        whole = text("squeue.txt")
        last = whole.splitlines()[-1]
        torn = whole[: len(whole) - len(last) - 1 + cut]
        assert len(parse.parse_squeue(torn)) == len(whole.splitlines()) - 1

    def test_a_reason_with_the_separator(self) -> None:
        row = text("squeue.txt").splitlines()[0].removesuffix("None|") + "(admin says | wait)|"
        assert parse.parse_squeue(row)[0].reason == "(admin says | wait)"

    def test_newer_slurm_prints_code_and_signal(self) -> None:
        row = next(line for line in text("squeue.txt").splitlines() if "|35072|" in line)
        (job,) = parse.parse_squeue(row.replace("|35072|", "|137:0|"))
        assert (job.exit_code, job.signal) == (137, None)
        (job,) = parse.parse_squeue(row.replace("|35072|", "||"))
        assert (job.exit_code, job.signal) == (None, None)

    def test_an_unknown_state_is_no_end(self) -> None:
        row = text("squeue.txt").splitlines()[2].replace("|FAILED|", "|EXPLODED|")
        (job,) = parse.parse_squeue(row)
        assert (job.state.base, job.state.word, job.exit_code) == (None, "EXPLODED", None)

    @given(st.text(max_size=400))
    @example(".0")  # a step row without an owner, before any job row
    def test_no_text_raises(self, noise: str) -> None:
        parse.parse_squeue(noise)
        parse.parse_squeue("|".join([noise] * len(commands.SQUEUE_FIELDS)))
        parse.parse_sacct("|".join([noise] * len(commands.SACCT_FIELDS)))
        parse.parse_sinfo("|".join([noise] * len(commands.SINFO_FIELDS)))
        parse.parse_steps(noise)


class TestSacct:
    def test_executions_with_their_steps(self) -> None:
        records = parse.parse_sacct(text("sacct.txt"))
        requeued, pending = (record for record in records if record.job_id == JobId(156))
        assert (requeued.state.word, pending.state.word) == ("REQUEUED", "PENDING")
        assert requeued.submit_time is not None
        assert pending.submit_time is not None
        assert requeued.submit_time < pending.submit_time
        (batch,) = requeued.steps
        assert (batch.name, batch.state.base, batch.signal) == ("batch", BaseState.CANCELLED, 9)
        assert (pending.steps, pending.nodes, pending.reason) == ((), "", "BeginTime")

    def test_who_cancelled(self) -> None:
        (record,) = (r for r in parse.parse_sacct(text("sacct.txt")) if r.job_id == JobId(155))
        assert (record.state.base, record.cancelled_by) == (BaseState.CANCELLED, 4242)

    def test_steps_of_arrays_and_het_jobs_belong_to_their_rows(self) -> None:
        records = {record.job_id: record for record in parse.parse_sacct(text("sacct.txt"))}
        assert [step.name for step in records[JobId(146)].steps] == ["batch", "0"]
        assert [step.name for step in records[JobId(147, 1)].steps] == ["batch"]
        assert [step.name for step in records[JobId(151)].steps] == ["batch"]
        assert records[JobId(151, None, 1)].steps == ()
        assert JobId(147) not in records

    def test_array_tasks_that_never_started_share_a_row(self) -> None:
        records = {record.job_id: record for record in parse.parse_sacct(text("sacct.txt"))}
        assert [records[JobId(147, task)].state.base for task in (2, 3)] == [BaseState.PENDING] * 2

    def test_a_shared_row_says_nothing_of_tasks_that_have_their_own(self) -> None:
        """As 22.05 shows an array that was cancelled: task 3 had started after the row was written."""
        rest = "0:0|0:0|None assigned|1795973157|Unknown|1795973160|60|None"
        rows = [
            f"2_3|6|COMPLETED|{rest}",
            f"2_[3-5%2]|2|CANCELLED by 4242|{rest}",
            f"2_[9-|2|PENDING|{rest}",
        ]
        records = {record.job_id: record for record in parse.parse_sacct("\n".join(rows))}
        assert set(records) == {JobId(2, 3), JobId(2, 4), JobId(2, 5)}
        assert records[JobId(2, 3)].state.base is BaseState.COMPLETED
        assert (records[JobId(2, 5)].state.base, records[JobId(2, 5)].cancelled_by) == (BaseState.CANCELLED, 4242)

    def test_exit_codes(self) -> None:
        records = {record.job_id: record for record in parse.parse_sacct(text("sacct.txt"))}
        assert (records[JobId(148)].exit_code, records[JobId(148)].derived_exit_code) == (7, 0)
        assert (records[JobId(149)].exit_code, records[JobId(149)].signal) == (0, 9)
        assert records[JobId(150)].exit_code == 9  # exit 137 before 25.11: sacct takes 128 off
        assert records[JobId(157)].nodes == "slurmlayer[3-5]"

    def test_a_step_without_its_job_is_left_out(self) -> None:
        rows = [row for row in text("sacct.txt").splitlines() if row.startswith("146.")]
        assert parse.parse_sacct("\n".join(rows)) == []

    def test_a_half_written_row_has_no_end(self) -> None:
        row = "9|9|FAILED|0:0||slurmlayer1|1795973157|Unknown|Unknown|Partition_Limit|None"
        (record,) = parse.parse_sacct(row)
        assert (record.start_time, record.end_time, record.derived_exit_code, record.time_limit) == (None,) * 4


class TestNodes:
    def test_one_record_per_node(self) -> None:
        nodes = {node.name: node for node in parse.parse_sinfo(text("sinfo.txt"))}
        assert len(nodes) == 6
        assert nodes["slurmlayer6"].states == {"IDLE", "DRAIN"}
        assert nodes["slurmlayer6"].reason == "bad | fan"
        assert nodes["slurmlayer2"].reason == ""
        assert set(nodes["slurmlayer1"].partitions) == {"batch", "graced", "urgent"}

    @pytest.mark.parametrize(
        ("word", "states"),
        [
            ("down*", {"DOWN", "NOT_RESPONDING"}),
            ("mixed+drain+completing", {"MIXED", "DRAIN", "COMPLETING"}),
            ("idle~", {"IDLE"}),
            ("", set()),
        ],
    )
    def test_node_states(self, word: str, states: set[str]) -> None:
        assert parse.parse_node_states(word) == states


class TestConfig:
    def test_a_real_configuration(self) -> None:
        can = parse.parse_config(text("config.txt"))
        assert (can.version, can.cluster_name, can.accounting, can.job_requeue) == (
            (22, 5),
            "mini-slurmlayer",
            True,
            True,
        )
        assert (can.min_job_age, can.kill_wait) == (timedelta(seconds=30), timedelta(seconds=5))
        assert can.requeue_delay == timedelta(seconds=6)  # cred_expire=5
        assert (can.preempt_type, can.requeue_exit) == ("preempt/partition_prio", "")

    @pytest.mark.parametrize(
        ("version", "scheduler", "auth", "delay_s"),
        [
            ("24.11.5", "(null)", "(null)", 121),
            ("25.11.0", "requeue_delay=10,bf_interval=5", "cred_expire=60", 11),
            ("24.11.5", "requeue_delay=10", "cred_expire=60", 61),
        ],
    )
    def test_the_requeue_delay(self, version: str, scheduler: str, auth: str, delay_s: int) -> None:
        lines = f"SLURM_VERSION = {version}\nSchedulerParameters = {scheduler}\nAuthInfo = {auth}\n"
        assert parse.parse_config(lines).requeue_delay == timedelta(seconds=delay_s)

    def test_the_clock_of_slurmctld(self) -> None:
        assert parse.parse_config(text("config.txt")).clock == datetime.fromtimestamp(1795973164, tz=timezone.utc)

    @pytest.mark.parametrize(
        ("line", "epilog"),
        [
            ("Epilog = (null)", False),
            ("Epilog = /etc/slurm/epilog.sh", True),
            ("Epilog[0] = /etc/slurm/epilog.sh", True),
            ("EpilogSlurmctld = /x", True),
            ("TaskEpilog = /x", False),
            ("EpilogMsgTime = 2000 usec", False),
        ],
    )
    def test_whether_an_epilog_runs(self, line: str, epilog: bool) -> None:
        assert parse.parse_config(f"SLURM_VERSION = 24.11.5\n{line}\n").epilog is epilog

    def test_no_accounting(self) -> None:
        assert not parse.parse_config("SLURM_VERSION = 26.05.0\nAccountingStorageType = (null)").accounting

    def test_no_version_is_no_configuration(self) -> None:
        with pytest.raises(ValueError, match="version"):
            parse.parse_config("slurm_load_ctl_conf error")


@pytest.mark.parametrize(
    ("answer", "job_id"),
    [
        ("123\n", JobId(123)),
        ("123;cluster\n", JobId(123)),
        ("a banner of the site\n77\n", JobId(77)),
        ("", None),
        ("sbatch: error: x", None),
        ("0\n", None),
    ],
)
def test_submitted(answer: str, job_id: JobId | None) -> None:
    assert parse.parse_submitted(answer) == job_id


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [
        ("1:00", 60),
        ("30:00", 1800),
        ("2-00:00:00", 172800),
        ("10:00:00", 36000),
        ("UNLIMITED", None),
        ("INVALID", None),
    ],
)
def test_durations(shown: str, seconds: int | None) -> None:
    assert fields.parse_duration(shown) == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(
    "shown", ["", "N/A", "Unknown", "None", "NONE", "0", "(null)", "2026-13-45T00:00:00", "9" * 30]
)
def test_times_that_are_not_set(shown: str) -> None:
    assert fields.parse_time(shown) is None


def test_iso_times_are_utc() -> None:
    assert fields.parse_time("2026-11-29T17:00:00") == datetime(2026, 11, 29, 17, tzinfo=timezone.utc)


def test_steps() -> None:
    assert sorted(parse.parse_steps(text("steps.txt"))) == ["0", "batch"]
    assert parse.parse_steps("5+1.0|\n2_0.batch|\nnonsense\n") == ["0", "batch"]


def test_reservations_of_scontrol() -> None:
    """As 22.05 prints them (``SLURM_TIME_FORMAT=%s``)."""
    line = (
        "ReservationName=maint2 StartTime=1795984878 EndTime=1795986678 Duration=00:30:00 Nodes=n[2-3] NodeCnt=2"
        " CoreCnt=16 Features=(null) PartitionName=(null) Flags=MAINT,OVERLAP,IGNORE_JOBS,SPEC_NODES TRES=cpu=16"
        " Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a"
        " MaxStartDelay=(null)"
    )
    (found,) = parse.parse_reservations(f"{line}\n\nNodes=n9 Flags=MAINT\n")
    assert (found.name, found.nodes) == ("maint2", "n[2-3]")
    assert found.flags == {"MAINT", "OVERLAP", "IGNORE_JOBS", "SPEC_NODES"}
    assert found.start_time is not None
    assert found.end_time is not None
    assert (found.start_time.timestamp(), found.end_time.timestamp()) == (1795984878, 1795986678)
    assert parse.parse_reservations("No reservations in the system\n") == []
