"""Slurm's pending reasons in plain words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmtrain.core.waiting import explain_waiting


@pytest.mark.parametrize(
    "reason",
    [
        "Priority", "Resources", "None", "", "Dependency", "BeginTime", "Cleaning", "Licenses", "Reservation", "Prolog",
        "JobArrayTaskLimit", "QOSMaxJobsPerUserLimit", "AssocGrpCpuLimit", "AssocMaxJobsLimit", "QOSGrpNodeLimit",
        "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
        "QOSMaxGRESPerUser", "MaxGRESPerAccount", "AssocGrpGRES", "QOSMaxCpuPerUserLimit", "SchedDefer",
    ],
)  # fmt: skip
def test_these_start_by_themselves(reason: str) -> None:
    assert explain_waiting(reason).helps is True


@pytest.mark.parametrize(
    "reason",
    [
        "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS",
        "DependencyNeverSatisfied", "JobHoldMaxRequeue", "launch_failure_limit_exceeded_requeued_held", "DeadLine",
        "QOSMaxCpuPerJobLimit", "QOSMaxNodePerJobLimit", "AssocMaxWallDurationPerJobLimit", "QOSMinGRES",
        "QOSMaxWallDurationPerJobLimit", "QOSMaxMemoryPerNode", "AccountNotAllowed", "QOSNotAllowed",
        "ReservationDeleted", "AssociationTimeLimit",
    ],
)  # fmt: skip
def test_these_never_start(reason: str) -> None:
    assert explain_waiting(reason).helps is False


@pytest.mark.parametrize(
    "reason",
    [
        "JobHeldUser", "JobHeldAdmin", "job_requeued_in_held_state", "launch_failed_requeued_held", "PartitionDown",
        "PartitionConfig",
        "ReqNodeNotAvail, UnavailableNodes:n[3-4]", "AssocGrpCPUMinutesLimit", "QOSGrpWallLimit", "NodeDown",
        "AssocGrpCPURunMinutesLimit", "SomethingNobodyKnows",
    ],
)  # fmt: skip
def test_these_need_somebody(reason: str) -> None:
    assert explain_waiting(reason).helps is None


def test_a_partition_that_is_too_small_is_not_said_to_be_closed() -> None:
    assert "cannot give" in explain_waiting("PartitionConfig").sentence


def test_the_unavailable_nodes_are_named() -> None:
    assert "n[3-4]" in explain_waiting("ReqNodeNotAvail, UnavailableNodes:n[3-4]").sentence


@given(st.text(max_size=500))
def test_any_text_has_a_bounded_answer(reason: str) -> None:
    waiting = explain_waiting(reason)
    assert waiting.sentence
    assert len(waiting.sentence) < 2500
