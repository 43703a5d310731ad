"""Nodes: who is suspect, who never is; Xid codes as NVIDIA's catalogue reads them."""

from __future__ import annotations

import pytest

from slurmtrain.core.blame import (
    XID_NODE,
    XID_NOTICE,
    XID_PROGRAM,
    XID_RESTART,
    foreign_memory_gib,
    suspects_of,
    task_numbers,
)
from slurmtrain.core.diagnose import Diagnosis, diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes

FAILED = Facts(state="FAILED", exit_code=1)
ERROR = "RuntimeError: CUDA error: unspecified launch failure\n"


def read(text: str, rules: RuleSet, facts: Facts = FAILED) -> Diagnosis:
    return diagnose(facts, [scan_bytes(text.encode(), rules)])


def xid(code: int, words: str = "") -> str:
    return f"[epilog] Aug 29 16:58:38 n14 kernel: NVRM: Xid (PCI:0000:31:00): {code}, pid=7, name=python, {words}\n"


@pytest.mark.parametrize("code", sorted(XID_NODE | XID_RESTART))
def test_a_code_of_the_machine_blames_the_node(code: int, rules: RuleSet) -> None:
    answer = read(ERROR + xid(code, "NVLink: fatal error"), rules)
    assert answer.family == "gpu_hw"
    assert [suspect.node for suspect in answer.suspects] == ["n14"]
    assert answer.action == "requeue-exclude-node"


@pytest.mark.parametrize("code", sorted(XID_PROGRAM))
def test_a_code_of_the_program_blames_nobody(code: int, rules: RuleSet) -> None:
    answer = read(ERROR + xid(code), rules)
    assert answer.cause == "cuda_illegal_access"
    assert answer.suspects == ()


@pytest.mark.parametrize("code", sorted(XID_NOTICE))
def test_a_notice_changes_nothing(code: int, rules: RuleSet) -> None:
    answer = read("Traceback (most recent call last):\n  File \"t.py\", line 1\nKeyError: 'x'\n" + xid(code), rules)
    assert answer.cause == "python_exception"
    assert answer.suspects == ()
    assert read(xid(code), rules, Facts(state="COMPLETED", exit_code=0)).cause == "no_failure"


def test_nvlink5_only_when_fatal(rules: RuleSet) -> None:
    assert read(ERROR + xid(149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08"), rules).cause == "gpu_nvlink"
    assert read(ERROR + xid(145, "RLW_REMAP Nonfatal XC1 i0 Link 08"), rules).cause == "cuda_illegal_access"


def test_a_pci_address_is_no_code(rules: RuleSet) -> None:
    assert read(ERROR + "NVRM: Xid (PCI:0000:79:00): 43, pid=7, Ch 00000008\n", rules).cause == "cuda_illegal_access"


def test_a_victims_node_is_never_blamed(rules: RuleSet) -> None:
    log = "3: [rank3]: RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:1\n"
    log += "srun: error: n2: task 3: Exited with exit code 1\n"
    answer = read(log, rules)
    assert answer.cause == "peer_lost"
    assert answer.suspects == ()


def test_the_peer_is_suspected_before_the_node_that_reports(rules: RuleSet) -> None:
    log = "n002:984:1357 [4] NCCL WARN NET/IB : Got completion from peer 10.0.0.59<44206> with status=12 opcode=129\n"
    names = [suspect.node for suspect in read(log, rules).suspects]
    assert names == ["10.0.0.59", "n002"]


def test_gpu_memory_of_another_process_is_the_nodes_trouble(rules: RuleSet) -> None:
    message = (
        "n7: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.10 GiB of which 1.00 GiB is free. Process 99 has 70.00 GiB memory in use. Including non-PyTorch memory, "
        "this process has 8.00 GiB memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch\n"
    )
    answer = read(message, rules)
    assert (answer.cause, answer.action, answer.retryable) == ("cuda_oom", "requeue-exclude-node", True)
    assert answer.infrastructure
    assert answer.suspects[0].node == "n7"
    own = message.replace("8.00 GiB memory in use", "77.00 GiB memory in use").replace("70.00 GiB", "1.00 GiB")
    assert read(own, rules).action == "stop"


def test_foreign_memory_needs_all_numbers() -> None:
    assert foreign_memory_gib("CUDA out of memory. Tried to allocate 2.00 GiB.") is None


def test_one_node_that_refuses_launches_is_excluded(rules: RuleSet) -> None:
    line = "srun: error: Task launch for StepId=9.0 failed on node {0}: Socket timed out on send/recv operation\n"
    assert read(line.format("n3") * 2, rules).action == "requeue-exclude-node"
    assert read(line.format("n3") + line.format("n4"), rules).action == "requeue"


def test_the_rank_leads_to_the_node(rules: RuleSet) -> None:
    facts = Facts(state="FAILED", exit_code=1, rank_nodes={3: "n8", 0: "n1"})
    answer = read("3: RuntimeError: CUDA error: uncorrectable ECC error encountered\n", rules, facts)
    assert (answer.node, answer.suspects[0].node) == ("n8", "n8")


def test_task_numbers_are_bounded() -> None:
    assert task_numbers("0-2,5") == {0, 1, 2, 5}
    assert len(task_numbers("0-999999999")) <= 100_001
    assert task_numbers("x-y,") == set()


def test_no_node_no_suspect() -> None:
    assert suspects_of("gpu_lost", None, None, Facts()) == ()
