"""Each of our own logs as the output of one rank among many: its cause must survive the noise of all others."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import pytest

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes
from slurmtrain.plugins.rulepacks import load_rules

from .conftest import DATA

pytestmark = pytest.mark.one_python

FOLDER = DATA / "logs" / "failures"
OUTSIDE = re.compile(r"^(?:srun|slurmstepd|sbatch|salloc|slurmd|\[epilog\]|kernel:|/var/spool|--+$|=+$)")
ABOUT_SLURM = {"scheduler", "none"}
# Alone they are causes; beside lost peers the peers' lines are as good.
SYMPTOMS = {"peer_lost", "nccl_timeout", "hang_no_progress", "nccl_system_error", "mpi_runtime_error", "ib_link_error"}
ALL: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())
CASES = [
    case
    for case in ALL
    if CAUSES[case["cause"]].family not in ABOUT_SLURM and case["cause"] not in SYMPTOMS and case["state"] == "FAILED"
]
PREFIXED = re.compile(
    r'(?m)^(?:\d+:|\[default\d+\]|\[\d+,\d+\]|\(\w+ (?:rank=\d+ )?pid)|\[rank\d+\]|"rank": \d|\[\d+\]<std'
)


@cache
def _rules() -> RuleSet:
    return load_rules()


def many_ranks(text: str, rank: int = 17) -> str:
    head = "".join(f"{peer}: step {step} loss 2.{step} lr 1e-4\n" for step in range(40) for peer in (0, 1, 2))
    body = "\n".join(
        line if not line or OUTSIDE.match(line) else f"{rank}: {line}" for line in text.rstrip("\n").split("\n")
    )
    victims = "".join(
        f"{peer}: [rank{peer}]:[E321 02:07:08.1 ProcessGroupNCCL.cpp:552] [Rank {peer}] Collective WorkNCCL(SeqNum=9, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) raised the following async exception: "
        "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5\n"
        f"{peer}: [rank{peer}]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank {peer}.\n"
        f"{peer}: terminate called after throwing an instance of 'c10::DistBackendError'\n"
        for peer in range(64)
        if peer != rank
    )
    ends = (
        f"srun: error: n3: task {rank}: Exited with exit code 1\nsrun: error: n1: tasks 0-15: Aborted (core dumped)\n"
    )
    return head + body + "\n" + victims + ends


@pytest.mark.parametrize("case", CASES, ids=[case["log"] for case in CASES])
def test_one_rank_among_many(case: dict[str, Any]) -> None:
    text = (FOLDER / case["log"]).read_text()
    if PREFIXED.search(text) or re.search(r"srun: error: \S+ task", text):
        pytest.skip("it has ranks of its own")
    facts = Facts(state="FAILED", exit_code=case["exit_code"], signal=case["signal"], nnodes=8)
    answer = diagnose(facts, [scan_bytes(many_ranks(text).encode(), _rules())])
    assert answer.cause == case["cause"], answer.sentence
    # The program's rank, or none where the line is the kernel's, Slurm's or the shell's; or what the log itself tells.
    told = diagnose(facts, [scan_bytes(text.encode(), _rules())]).rank
    assert answer.rank in (17, None) or answer.rank == told, answer.sentence


@pytest.mark.parametrize("case", CASES, ids=[case["log"] for case in CASES])
def test_after_a_requeue_without_our_mark(case: dict[str, Any]) -> None:
    """An earlier attempt of another cause, Slurm's requeue line, a fresh start, progress: the last attempt counts."""
    earlier = (
        "step 1 loss 3.0 lr 1e-4\n[rank0]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x7 and 8x2)\n"
        "srun: error: n1: task 0: Exited with exit code 1\n"
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-01-01T10:00:00 DUE TO JOB REQUEUE ***\n"
        "Resuming from checkpoint step-100\n"
    )
    earlier += "".join(f"step {step} loss 2.1 lr 1e-4\n" for step in range(100, 120))
    text = earlier + (FOLDER / case["log"]).read_text()
    facts = Facts(state="FAILED", exit_code=case["exit_code"], signal=case["signal"])
    assert diagnose(facts, [scan_bytes(text.encode(), _rules())]).cause == case["cause"]


def test_settings_printed_in_front_change_nothing() -> None:
    """Programs print their arguments and environment first; what is named there is no part of a traceback."""
    settings = (DATA / "logs" / "noise" / "settings.log").read_bytes()
    for case in ALL[::4]:
        facts = Facts(state=case["state"], exit_code=case["exit_code"], signal=case["signal"])
        answer = diagnose(facts, [scan_bytes(settings + (FOLDER / case["log"]).read_bytes(), _rules())])
        assert answer.cause == case["cause"], (case["log"], answer.sentence)
