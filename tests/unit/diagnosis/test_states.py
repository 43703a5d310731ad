"""Slurm's facts: what they decide, and where the text overrules them."""

from __future__ import annotations

from typing import Any

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts, RankExit
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes

STEP = "".join(f"step {number} loss 2.{number} lr 1e-4\n" for number in range(1, 9))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
RAISED = "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    x\nKeyError: 'y'\n"
CANCELLED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T10:00:00 ***\n"
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO TIME LIMIT ***\n"
NAN = "".join(f"step {number} loss nan lr 1e-4\n" for number in range(9, 20))

TABLE: list[tuple[str, dict[str, Any], str, str]] = [
    ("completed", {"state": "COMPLETED", "exit_code": 0}, STEP, "no_failure"),
    ("completed after scares", {"state": "COMPLETED", "exit_code": 0}, OOM + STEP, "no_failure"),
    ("completed, only scares", {"state": "COMPLETED", "exit_code": 0}, OOM, "no_failure"),
    ("completed with NaN to the end", {"state": "COMPLETED", "exit_code": 0}, STEP + NAN, "nan_loss"),
    (
        "completed, a step failed",
        {"state": "COMPLETED", "exit_code": 0, "derived_exit_code": 1},
        STEP + RAISED,
        "python_exception",
    ),
    (
        "completed by a bare wait",
        {"state": "COMPLETED", "exit_code": 0},
        STEP + RAISED + "srun: error: n1: task 0: Exited with exit code 1\n",
        "python_exception",
    ),
    (
        "failed after an earlier execution was preempted, no banner between",
        {"state": "FAILED", "exit_code": 1},
        STEP + LIMIT.replace("TIME LIMIT", "PREEMPTION") + RAISED,
        "python_exception",
    ),
    (
        "preempted, an exception while it ended",
        {"state": "PREEMPTED", "exit_code": 0, "signal": 15},
        STEP + LIMIT.replace("TIME LIMIT", "PREEMPTION") + RAISED,
        "preempted",
    ),
    ("empty log, failed", {"state": "FAILED", "exit_code": 1}, "", "unknown"),
    ("empty log, out of memory", {"state": "OUT_OF_MEMORY", "exit_code": 0, "signal": 125}, "", "host_oom"),
    ("failed 0:125", {"state": "FAILED", "exit_code": 0, "signal": 125}, "", "host_oom"),
    ("failed 15:0 with cgroup events", {"state": "FAILED", "exit_code": 15, "oom_kill_events": 2}, STEP, "host_oom"),
    ("empty log, node lost", {"state": "NODE_FAIL"}, "", "node_fail"),
    ("boot failure", {"state": "BOOT_FAIL"}, "", "node_fail"),
    ("deadline", {"state": "DEADLINE"}, "", "slurm_request_invalid"),
    ("segmentation fault code", {"state": "FAILED", "exit_code": 139}, STEP, "native_crash"),
    ("segmentation fault signal", {"state": "FAILED", "exit_code": 0, "signal": 11}, STEP, "native_crash"),
    ("illegal instruction code", {"state": "FAILED", "exit_code": 132}, STEP, "illegal_instruction"),
    ("command not found code", {"state": "FAILED", "exit_code": 127}, "", "command_not_found"),
    ("killed is no proof of memory", {"state": "FAILED", "exit_code": 137}, STEP, "unknown"),
    ("only a number", {"exit_code": 1}, STEP + RAISED, "python_exception"),
    ("time limit", {"state": "TIMEOUT"}, STEP + LIMIT, "time_limit"),
    ("time limit, no text", {"state": "TIMEOUT", "last_output_age_s": 30.0}, STEP, "time_limit"),
    ("time limit of a hang", {"state": "TIMEOUT", "last_output_age_s": 7200.0}, STEP + LIMIT, "hang_no_progress"),
    ("time limit of NaN", {"state": "TIMEOUT"}, STEP + NAN + LIMIT, "nan_loss"),
    ("time limit after a death", {"state": "TIMEOUT"}, STEP + OOM + LIMIT, "cuda_oom"),
    ("time limit, then the teardown", {"state": "TIMEOUT"}, STEP + LIMIT + RAISED, "time_limit"),
    ("scancel", {"state": "CANCELLED"}, STEP + CANCELLED, "user_cancelled"),
    ("scancel by a person after an error", {"state": "CANCELLED by 1000"}, STEP + OOM + CANCELLED, "user_cancelled"),
    (
        "scancel by a person, uid apart",
        {"state": "CANCELLED", "cancelled_by": "1000"},
        STEP + OOM + CANCELLED,
        "user_cancelled",
    ),
    ("cancelled by a watcher after an error", {"state": "CANCELLED"}, STEP + OOM + CANCELLED, "cuda_oom"),
    (
        "cancelled long after the last output",
        {"state": "CANCELLED", "last_output_age_s": 9000.0},
        STEP,
        "hang_no_progress",
    ),
    (
        "our own stop for the limit",
        {"state": "FAILED", "exit_code": 143, "stop_sent": "time_limit"},
        STEP,
        "time_limit",
    ),
    ("our own stop, exit 1", {"state": "FAILED", "exit_code": 1, "stop_sent": "preempted"}, STEP + RAISED, "preempted"),
    ("our own stop of a hang", {"state": "CANCELLED", "stop_sent": "hang"}, STEP, "hang_no_progress"),
    (
        "a stop of ours, broken hardware",
        {"state": "FAILED", "stop_sent": "time_limit"},
        STEP + "GPU 0 is lost\n",
        "gpu_lost",
    ),
    ("preempted", {"state": "PREEMPTED"}, STEP + OOM, "preempted"),
    (
        "requeued near the limit",
        {"state": "REQUEUED", "elapsed_s": 86_300.0, "time_limit_s": 86_400.0},
        STEP,
        "time_limit",
    ),
    ("requeued early", {"state": "REQUEUED", "elapsed_s": 300.0, "time_limit_s": 86_400.0}, STEP, "preempted"),
    (
        "fewer GPUs than granted",
        {"state": "FAILED", "exit_code": 1, "allocated_gpus": 4, "visible_gpus": 3},
        STEP,
        "gpu_unavailable",
    ),
    ("an unknown word", {"state": "SOMETHING_NEW", "exit_code": 1}, STEP + RAISED, "python_exception"),
    ("no facts, no failure", {}, STEP, "no_failure"),
    ("no facts, a failure", {}, STEP + RAISED, "python_exception"),
    ("no facts, a time limit", {}, STEP + LIMIT, "time_limit"),
]


@pytest.mark.parametrize(("facts", "log", "cause"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(facts: dict[str, Any], log: str, cause: str, rules: RuleSet) -> None:
    answer = diagnose(Facts(**facts), [scan_bytes(log.encode(), rules)])
    assert answer.cause == cause, answer.sentence


def test_facts_without_any_log(rules: RuleSet) -> None:
    assert diagnose(Facts(state="FAILED", exit_code=139), [], rules).cause == "native_crash"
    assert diagnose(Facts(state="NODE_FAIL", failed_nodes=("n7",)), []).suspects[0].node == "n7"


def test_a_disagreement_costs_confidence_and_is_said(rules: RuleSet) -> None:
    sure = diagnose(Facts(state="FAILED", exit_code=1), [scan_bytes((STEP + RAISED).encode(), rules)])
    odd = diagnose(
        Facts(state="COMPLETED", exit_code=0, derived_exit_code=1), [scan_bytes((STEP + RAISED).encode(), rules)]
    )
    assert odd.confidence < sure.confidence
    assert odd.notes
    assert not sure.notes


KEY = "[rank2]: Traceback (most recent call last):\n[rank2]:   File \"t.py\", line 3\n[rank2]: KeyError: 'y'\n"
LAUNCH = "RuntimeError: CUDA error: unspecified launch failure\n"
IMPORT = "Traceback (most recent call last):\n  File \"t.py\", line 1\nModuleNotFoundError: No module named 'a'\n"
KILLED = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n"

# What a fact changes: facts without it, the fact, the log, the cause before and after (the same: less sure, and said).
CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str]] = [
    ("no oom event", {"state": "OUT_OF_MEMORY"}, {"oom_kill_events": 0}, STEP, "host_oom", "host_oom"),
    (
        "an oom event",
        {"state": "FAILED", "exit_code": 1},
        {"oom_kill_events": 1},
        KILLED,
        "dataloader_worker_killed",
        "host_oom",
    ),
    (
        "a step's word",
        {"state": "FAILED", "exit_code": 1},
        {"step_states": ("COMPLETED", "OUT_OF_MEMORY")},
        STEP,
        "unknown",
        "host_oom",
    ),
    (
        "a missing GPU, CUDA error",
        {"state": "FAILED", "exit_code": 1},
        {"allocated_gpus": 8, "visible_gpus": 7},
        LAUNCH,
        "cuda_illegal_access",
        "gpu_unavailable",
    ),
    (
        "a missing GPU, no text",
        {"state": "FAILED", "exit_code": 1},
        {"allocated_gpus": 8, "visible_gpus": 7},
        STEP,
        "unknown",
        "gpu_unavailable",
    ),
    (
        "a missing GPU, KeyError",
        {"state": "FAILED", "exit_code": 1},
        {"allocated_gpus": 8, "visible_gpus": 7},
        KEY,
        "python_exception",
        "python_exception",
    ),
    (
        "a start-up error after steps",
        {"state": "FAILED", "exit_code": 1},
        {"step_progress": 500},
        IMPORT,
        "import_error",
        "import_error",
    ),
    (
        "a time limit too early",
        {"state": "TIMEOUT"},
        {"elapsed_s": 600.0, "time_limit_s": 7200.0},
        STEP,
        "time_limit",
        "time_limit",
    ),
    (
        "a hang that still made steps",
        {"state": "TIMEOUT", "last_output_age_s": 7200.0},
        {"last_progress_age_s": 20.0},
        STEP,
        "hang_no_progress",
        "time_limit",
    ),
    (
        "output without steps",
        {"state": "TIMEOUT", "last_output_age_s": 5.0},
        {"last_progress_age_s": 9000.0},
        STEP,
        "time_limit",
        "hang_no_progress",
    ),
    (
        "completed half way",
        {"state": "COMPLETED", "exit_code": 0},
        {"newest_checkpoint_step": 500, "target_step": 1000},
        STEP,
        "no_failure",
        "no_failure",
    ),
]


@pytest.mark.parametrize(
    ("given", "fact", "log", "before", "after"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES]
)
def test_what_a_fact_changes(
    given: dict[str, Any], fact: dict[str, Any], log: str, before: str, after: str, rules: RuleSet
) -> None:
    without, known = (diagnose(Facts(**facts), [scan_bytes(log.encode(), rules)]) for facts in (given, given | fact))
    assert (without.cause, known.cause) == (before, after)
    if before == after:
        assert known.confidence < without.confidence
        assert len(known.notes) > len(without.notes)


def test_facts_that_agree_cost_nothing(rules: RuleSet) -> None:
    log = [scan_bytes((STEP + LIMIT).encode(), rules)]
    facts = Facts(
        state="TIMEOUT", elapsed_s=7205.0, time_limit_s=7200.0, last_output_age_s=9.0, last_progress_age_s=9.0
    )
    answer = diagnose(facts, log)
    assert (answer.confidence, answer.notes) == (0.97, ())
    full = Facts(state="FAILED", exit_code=1, allocated_gpus=8, visible_gpus=8, step_progress=0, oom_kill_events=0)
    assert diagnose(full, [scan_bytes(IMPORT.encode(), rules)]).notes == ()


def test_another_error_before_the_memory_ran_out_is_said(rules: RuleSet) -> None:
    answer = diagnose(Facts(state="OUT_OF_MEMORY", signal=125), [scan_bytes((STEP + OOM).encode(), rules)])
    assert answer.cause == "host_oom"
    assert "cuda_oom in line 9" in answer.notes[0]


def test_facts_survive_json() -> None:
    facts = Facts(
        state="FAILED",
        rank_exits=(RankExit(3, "n1", 5, None, 0),),
        rank_nodes={3: "n1"},
        failed_nodes=("n2",),
        nnodes=2,
    )
    assert Facts.from_dict({**facts.to_dict(), "something": "newer"}) == facts


def test_a_diagnosis_survives_json(rules: RuleSet) -> None:
    from slurmtrain.core.diagnosis.model import Diagnosis

    answer = diagnose(Facts(state="FAILED", exit_code=1), [scan_bytes(("GPU 3 is lost\n" + OOM).encode(), rules)])
    assert Diagnosis.from_dict({**answer.to_dict(), "something": "newer"}) == answer
