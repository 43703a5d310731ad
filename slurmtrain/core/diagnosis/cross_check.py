"""Facts against text: where they disagree the answer is less sure and says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.diagnosis.select import ROOT, Evidence, choose
from slurmtrain.core.diagnosis.states import Verdict, base_state, missing_gpus
from slurmtrain.core.facts import Facts
from slurmtrain.core.findings import Finding

DOUBT = 0.8  # what is left of the confidence for each disagreement
EARLY = 0.9  # of the time limit
RECENT_S = 300.0

# What fails before the first step of a training, if it fails at all.
BEFORE_TRAINING = frozenset(
    (
        "slurm_request_invalid",
        "slurm_launch_failed",
        "container_start_failed",
        "container_pull_failed",
        "import_error",
        "shared_lib_missing",
        "cuda_version_mismatch",
        "command_not_found",
        "config_error",
        "checkpoint_mismatch",
        "rendezvous_timeout",
        "port_in_use",
    )
)
MEMORY = frozenset(("host_oom", "dataloader_worker_killed", "shm_exhausted"))


def cross_check(verdict: Verdict, facts: Facts, evidence: Evidence) -> Verdict:
    """The same verdict with its doubts, each of which costs confidence."""
    doubts = tuple(_doubts(verdict, facts, evidence))
    return replace(verdict, confidence=verdict.confidence * DOUBT ** len(doubts), doubts=doubts) if doubts else verdict


def _doubts(verdict: Verdict, facts: Facts, evidence: Evidence) -> Iterator[str]:
    state, _ = base_state(facts)
    yield from _memory(verdict, facts, evidence, state)
    yield from _time(verdict, facts, state)
    yield from _progress(verdict, facts)
    if missing_gpus(facts) and CAUSES[verdict.cause].family not in ("gpu_hw", "none", "scheduler"):
        yield f"{missing_gpus(facts)} of {facts.allocated_gpus} allocated GPUs were not there"
    if verdict.cause == "preempted" and state == "PREEMPTED":
        yield from _before_it(evidence, "it was preempted")


def _memory(verdict: Verdict, facts: Facts, evidence: Evidence, state: str | None) -> Iterator[str]:
    if verdict.cause != "host_oom":
        return
    if state == "OUT_OF_MEMORY" and facts.oom_kill_events == 0:
        yield "Slurm says OUT_OF_MEMORY, but the cgroups counted no kill"
    if state == "OUT_OF_MEMORY" or facts.oom_kill_events:
        yield from _before_it(evidence, "the memory ran out")


def _before_it(evidence: Evidence, what: str) -> Iterator[str]:
    """A cause that the log shows beside what Slurm says."""
    stop = min((item.line for item in evidence.stops), default=None)
    found = choose([item for item in evidence.causes if _counts(item) and (stop is None or item.line < stop)])
    if found is not None:
        yield f"the log shows {found.cause} in line {found.line} before {what}"


def _counts(item: Finding) -> bool:
    return item.weight >= ROOT and item.cause not in MEMORY and item.cause not in ("preempted", "user_cancelled")


def _time(verdict: Verdict, facts: Facts, state: str | None) -> Iterator[str]:
    elapsed, limit = facts.elapsed_s, facts.time_limit_s
    if elapsed is None or not limit:
        return
    early = elapsed < min(limit * EARLY, limit - 1)
    if early and (state == "TIMEOUT" or verdict.cause == "time_limit"):
        yield f"it ran {_hours(elapsed)} of a time limit of {_hours(limit)}"


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def _progress(verdict: Verdict, facts: Facts) -> Iterator[str]:
    if facts.step_progress and verdict.cause in BEFORE_TRAINING:
        yield f"such errors come before training begins, but it got {facts.step_progress} steps further"
    age = facts.last_progress_age_s
    if verdict.cause == "hang_no_progress" and age is not None and age < RECENT_S:
        yield f"its last step was only {age:.0f} s before the end"
    newest, target = facts.newest_checkpoint_step, facts.target_step
    if verdict.cause == "no_failure" and target is not None and newest is not None and newest < target:
        yield f"its newest checkpoint is of step {newest} of {target}"
