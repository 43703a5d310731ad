"""Slurm's text → records. Pure: no clock, no process. A row that is cut off or not understood is left out."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from slurmtrain.core.array import parse_array
from slurmtrain.core.jobid import JobId, parse_job_id
from slurmtrain.core.jobstate import ENDED, StateFlag, parse_job_state
from slurmtrain.slurm.client import AccountingRecord, Capabilities, JobRecord, NodeRecord, ReservationRecord, StepRecord
from slurmtrain.slurm.commands import SACCT_FIELDS, SEPARATOR, SINFO_FIELDS, SQUEUE_FIELDS
from slurmtrain.slurm.fields import (
    parse_duration,
    parse_exit_code,
    parse_int,
    parse_minutes,
    parse_options,
    parse_seconds,
    parse_text,
    parse_time,
)

_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]{1,10})", re.ASCII)
_AS_OF = re.compile(r"Configuration data as of ([0-9]{9,11})\b", re.ASCII)
_EPILOG = re.compile(r"epilog(slurmctld)?(\[\d+\])?")  # from 24.11 on a list: Epilog[0]
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})", re.ASCII)
_UNSPLIT = re.compile(r"([1-9][0-9]{0,9})_\[([^\]]{1,4000})\]", re.ASCII)  # array tasks that never started
_SUBMITTED = re.compile(r"([1-9][0-9]{0,9})(?:;\S*)?", re.ASCII)
_FIRST = datetime.min.replace(tzinfo=timezone.utc)
_NODE_STATE_MARKS = "*~#!%$@^-+"


def _rows(text: str, fields: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows as field → value. The last field may hold the separator; a row with fewer fields was cut off."""
    last = len(fields) - 1
    for line in text.splitlines():
        values = line.split(SEPARATOR, last)
        if len(values) == len(fields):
            values[last] = values[last].removesuffix(SEPARATOR)
            yield dict(zip(fields, values, strict=True))


def parse_squeue(text: str) -> list[JobRecord]:
    """Answer of ``commands.build_squeue``."""
    records = (build_job_record(row) for row in _rows(text, SQUEUE_FIELDS))
    return [record for record in records if record is not None]


def join_components(records: Iterable[JobRecord]) -> list[JobRecord]:
    """Records in which the leader of a heterogeneous job stands for all of it: nodes, their number, partitions."""
    listed = list(records)
    parts: dict[int, list[JobRecord]] = {}
    for record in listed:
        if record.job_id.het_offset:
            parts.setdefault(record.job_id.base, []).append(record)
    return [
        _with_parts(record, sorted(parts[record.job_id.base], key=lambda one: one.job_id.het_offset or 0))
        if record.job_id == JobId(record.job_id.base) and record.job_id.base in parts
        else record
        for record in listed
    ]


def _with_parts(leader: JobRecord, parts: list[JobRecord]) -> JobRecord:
    all_parts = [leader, *parts]
    return replace(
        leader,
        nodes=_listed(one.nodes for one in all_parts),
        node_count=sum(one.node_count for one in all_parts),
        required_nodes=_listed(one.required_nodes for one in all_parts),
        partition=",".join(dict.fromkeys(name for one in all_parts for name in one.partition.split(","))),
    )


def _listed(expressions: Iterable[str]) -> str:
    """Node lists in the order of the components."""
    return ",".join(one for one in expressions if one)


def build_job_record(row: Mapping[str, str]) -> JobRecord | None:
    """A row of squeue as field → text; None when it names no job."""
    raw = parse_int(row["JobID"])
    job_id = _job_id_of(row, raw)
    if raw is None or job_id is None:
        return None
    state = parse_job_state(row["State"])
    exit_code, signal = parse_exit_code(row["exit_code"]) if state.base in ENDED else (None, None)
    return JobRecord(
        job_id=job_id,
        state=state,
        reason=_reason(row["Reason"]),
        restart_count=parse_int(row["RestartCnt"]) or 0,
        nodes=parse_text(row["NodeList"]),
        node_count=parse_int(row["NumNodes"]) or 0,
        exit_code=exit_code,
        signal=signal,
        submit_time=parse_time(row["SubmitTime"]),
        begin_time=parse_time(row["EligibleTime"]),
        start_time=parse_time(row["StartTime"]),
        end_time=parse_time(row["EndTime"]),
        preempt_time=parse_time(row["PreemptTime"]),
        time_limit=parse_duration(row["TimeLimit"]),
        required_nodes=parse_text(row["ReqNodes"]),
        partition=parse_text(row["Partition"]),
        priority=parse_int(row["PriorityLong"]),
        dependency=parse_text(row["Dependency"]),
        raw_job_id=raw,
        user_id=parse_int(row["UserID"]),
        requeue=row["Requeue"].strip() != "0",
    )


def _job_id_of(row: Mapping[str, str], raw: int | None) -> JobId | None:
    """The id that one would type: ``<array>_<task>``, ``<leader>+<n>``, the leader itself without ``+0``."""
    task, leader, offset = (parse_int(row[name]) for name in ("ArrayTaskID", "HetJobID", "HetJobOffset"))
    array = parse_int(row["ArrayJobID"])
    if task is not None and array is not None:
        return JobId(array, task)
    if leader is not None and offset is not None:
        return JobId(leader, None, offset or None)
    return None if raw is None else JobId(raw)


def _reason(text: str) -> str:
    return parse_text(text)[:300]


def parse_sacct(text: str) -> list[AccountingRecord]:
    """Answer of ``commands.build_sacct``: executions, oldest first, each with the step rows that follow it.

    Rows RESIZING (a job was made smaller) and REVOKED (another cluster of a federation runs it) are no executions.
    """
    records: list[AccountingRecord] = []
    steps: list[StepRecord] = []
    waiting: list[tuple[int, str, dict[str, str]]] = []
    current = ""
    for row in _rows(text, SACCT_FIELDS):
        owner, _, step = row["JobID"].partition(".")
        if not step:
            current = owner
            steps = []
            record = _accounting_record(row)
            if record is not None:
                records.append(record)
            else:
                current = ""
                if unsplit := _UNSPLIT.fullmatch(owner):
                    waiting.append((int(unsplit[1]), unsplit[2], row))
        elif current and owner == current:
            steps.append(_step_record(step, row))
            records[-1] = replace(records[-1], steps=tuple(steps))
    records += _never_started(waiting, {record.job_id for record in records})
    executions = (record for record in records if not record.state.flags & {StateFlag.RESIZING, StateFlag.REVOKED})
    return sorted(executions, key=lambda record: (record.submit_time or _FIRST, record.start_time or _FIRST))


def _never_started(
    waiting: Iterable[tuple[int, str, dict[str, str]]], started: Collection[JobId]
) -> Iterator[AccountingRecord]:
    """One row, ``2_[3-5%2]``, stands for all tasks that have not been split off; it may still list some that were."""
    for base, tasks, row in waiting:
        try:
            numbers = parse_array(tasks).tasks
        except ValueError:  # a long list is cut off by sacct
            continue
        for job_id in (JobId(base, task) for task in numbers):
            record = _accounting_record({**row, "JobID": str(job_id)}) if job_id not in started else None
            if record is not None:
                yield record


def _accounting_record(row: dict[str, str]) -> AccountingRecord | None:
    try:
        parsed = parse_job_id(row["JobID"])
    except ValueError:
        return None
    exit_code, signal = parse_exit_code(row["ExitCode"])
    cancelled = _CANCELLED_BY.match(row["State"].strip())
    return AccountingRecord(
        job_id=JobId(parsed.base, parsed.array_task, parsed.het_offset or None),
        state=parse_job_state(row["State"]),
        exit_code=exit_code,
        signal=signal,
        derived_exit_code=parse_exit_code(row["DerivedExitCode"])[0],
        nodes=parse_text(row["NodeList"]),
        reason=_reason(row["Reason"]),
        submit_time=parse_time(row["Submit"]),
        start_time=parse_time(row["Start"]),
        end_time=parse_time(row["End"]),
        time_limit=parse_minutes(row["TimelimitRaw"]),
        cancelled_by=int(cancelled[1]) if cancelled else None,
        raw_job_id=parse_int(row["JobIDRaw"]),
    )


def _step_record(name: str, row: dict[str, str]) -> StepRecord:
    exit_code, signal = parse_exit_code(row["ExitCode"])
    return StepRecord(
        name=name,
        state=parse_job_state(row["State"]),
        exit_code=exit_code,
        signal=signal,
        nodes=parse_text(row["NodeList"]),
        start_time=parse_time(row["Start"]),
        end_time=parse_time(row["End"]),
    )


def parse_steps(text: str) -> list[str]:
    """Step names of ``squeue -s``: ``1.batch`` → ``batch``, ``5+1.0`` → ``0``."""
    ids = (line.strip().removesuffix(SEPARATOR) for line in text.splitlines())
    return [step_id.rpartition(".")[2] for step_id in ids if "." in step_id]


def parse_sinfo(text: str) -> list[NodeRecord]:
    """Answer of ``commands.build_sinfo``."""
    return build_nodes(_rows(text, SINFO_FIELDS))


def build_nodes(rows: Iterable[Mapping[str, str]]) -> list[NodeRecord]:
    """One record per node, from one row for each of its partitions."""
    nodes: dict[str, NodeRecord] = {}
    for row in rows:
        name, partition = row["NodeList"].strip(), row["Partition"].strip().removesuffix("*")
        if not name:
            continue
        known = nodes.get(name) or _node_record(name, row)
        if partition and partition not in known.partitions:
            known = replace(known, partitions=(*known.partitions, partition))
        nodes[name] = known
    return list(nodes.values())


def _node_record(name: str, row: Mapping[str, str]) -> NodeRecord:
    features = frozenset(word.strip() for word in parse_text(row["Features"]).split(",")) - {""}
    return NodeRecord(name, parse_node_states(row["StateComplete"]), parse_text(row["Reason"]), features=features)


def parse_node_states(text: str) -> frozenset[str]:
    """``mixed+drain*`` → ``{"MIXED", "DRAIN", "NOT_RESPONDING"}``."""
    words = {word.rstrip(_NODE_STATE_MARKS).upper() for word in text.strip().split("+")}
    if text.strip().endswith("*"):
        words.add("NOT_RESPONDING")
    return frozenset(word for word in words if word)


def parse_reservations(text: str) -> list[ReservationRecord]:
    """Answer of ``commands.build_reservations``; what has no name is left out ("No reservations in the system")."""
    return [found for line in text.splitlines() if (found := _reservation(line)) is not None]


def _reservation(line: str) -> ReservationRecord | None:
    """``Name=value`` words in a fixed order. A name holds no blank, so that no value can pose as another field."""
    fields: dict[str, str] = {}
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals:
            fields.setdefault(name, value)
    name = fields.get("ReservationName", "")
    if not name:
        return None
    return ReservationRecord(
        name,
        frozenset(flag.upper() for flag in fields.get("Flags", "").split(",") if flag),
        parse_text(fields.get("Nodes", "")),
        parse_time(fields.get("StartTime", "")),
        parse_time(fields.get("EndTime", "")),
    )


def parse_submitted(text: str) -> JobId | None:
    """The job id that ``sbatch --parsable`` printed (its last line), None when there is none."""
    for line in reversed(text.splitlines()):
        match = _SUBMITTED.fullmatch(line.strip())
        if match:
            return JobId(int(match[1]))
    return None


def parse_config(text: str) -> Capabilities:
    """``scontrol show config``; raises ``ValueError`` when it holds no version."""
    settings = dict(_config_lines(text.splitlines()))
    match = _VERSION.match(settings.get("slurm_version", ""))
    if match is None:
        raise ValueError("the configuration names no Slurm version")
    version = (int(match[1]), int(match[2]))
    storage = settings.get("accountingstoragetype", "")
    return Capabilities(
        version=version,
        accounting=storage not in ("", "accounting_storage/none"),
        min_job_age=_seconds(settings, "minjobage", 300),
        kill_wait=_seconds(settings, "killwait", 30),
        requeue_delay=_requeue_delay(settings, version),
        job_requeue=settings.get("jobrequeue", "1") != "0",
        preempt_type=settings.get("preempttype", ""),
        preempt_mode=settings.get("preemptmode", ""),
        cluster_name=settings.get("clustername", ""),
        requeue_exit=settings.get("requeueexit", ""),
        requeue_exit_hold=settings.get("requeueexithold", ""),
        max_array_size=parse_int(settings.get("maxarraysize", "")),
        clock=_clock(text),
        epilog=any(value for name, value in settings.items() if _EPILOG.fullmatch(name) and value != "(null)"),
    )


def _clock(text: str) -> datetime | None:
    """From the first line, ``Configuration data as of 1795973164``: the time of the answer (``fill_ctld_conf``)."""
    match = _AS_OF.match(text.lstrip())
    return datetime.fromtimestamp(int(match[1]), tz=timezone.utc) if match else None


def _config_lines(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and name.strip():
            yield name.strip().lower(), parse_text(value)


def _seconds(settings: dict[str, str], name: str, default: int) -> timedelta:
    value = parse_seconds(settings.get(name, ""))
    return timedelta(seconds=default) if value is None else value


def _requeue_delay(settings: dict[str, str], version: tuple[int, int]) -> timedelta:
    """One second more than cred_expire (AuthInfo, 120 s) or, since 25.11, SchedulerParameters=requeue_delay."""
    if version >= (25, 11):
        delay = parse_int(parse_options(settings.get("schedulerparameters", "")).get("requeue_delay", ""))
        if delay is not None:
            return timedelta(seconds=delay + 1)
    expire = parse_int(parse_options(settings.get("authinfo", "")).get("cred_expire", ""))
    return timedelta(seconds=(120 if expire is None else expire) + 1)


def is_wanted(record_id: JobId, wanted: Collection[JobId]) -> bool:
    """Whether a record answers a question for these ids: ``123`` asks for all its tasks and components."""
    return record_id in wanted or JobId(record_id.base) in wanted
