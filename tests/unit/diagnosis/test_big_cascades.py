"""64 to 512 ranks: one failed by itself and was not the first to print. Its cause and number must be found."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes

pytestmark = pytest.mark.one_python

FAILED = Facts(state="FAILED", exit_code=1)
Victim = Callable[[int], list[str]]


def raised(rank: int, error: str) -> list[str]:
    lines = [
        "Traceback (most recent call last):",
        '  File "/home/u/train.py", line 10, in <module>',
        "    main()",
        error,
    ]
    return [f"[rank{rank}]: {line}" for line in lines]


def watchdog(rank: int) -> list[str]:
    clock = f"E1102 10:11:{rank % 60:02d}.1"
    head = f"[rank{rank}]:[{clock} ProcessGroupNCCL.cpp:629] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    return [
        head + "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=981, OpType=ALLREDUCE, NumelIn=2, "
        "NumelOut=2, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
        head + "failure detected by watchdog at work sequence id: 981 PG status: last enqueued work: 983, last "
        "completed work: 980",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    ]


def remote(rank: int) -> list[str]:
    return [
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL communicator was aborted on rank {rank}.",
    ]


def gloo(rank: int) -> list[str]:
    where = f"[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:{20000 + rank}"
    return raised(rank, f"RuntimeError: {where}")


def recv(rank: int) -> list[str]:
    lost = "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
    return raised(rank, f"torch.distributed.DistNetworkError: {lost}")


VICTIMS: list[Victim] = [watchdog, remote, gloo, recv]
CULPRITS = {
    "python_exception": "KeyError: 'img_008812'",
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.12 GiB. GPU 3 has 0.77 GiB free.",
    "cuda_device_assert": "RuntimeError: CUDA error: device-side assert triggered",
    "tensor_shape_error": "RuntimeError: stack expects each tensor to be equal size, but got [9] at entry 0 and [8]",
    "nan_loss": "AssertionError: Rank 17: found NaN in local forward loss calculation. Device: 1, node: n002",
    "checkpoint_corrupt": "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header",
    "data_missing": "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-00812.tar'",
    "import_error": "ModuleNotFoundError: No module named 'transformer_engine'",
    "data_corrupt": "PIL.UnidentifiedImageError: cannot identify image file '/data/a.jpg'",
    "cuda_illegal_access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "config_error": "ValueError: hidden_size (1024) must be divisible by num_attention_heads (12)",
    "extension_build_failed": "RuntimeError: Error building extension 'fused_adam'",
}


def cascade(world: int, culprit: int, lines: list[str], victims: list[Victim], seed: int) -> str:
    """What srun --label shows: some steps, a quarter of the victims, the culprit, the other victims, the ends."""
    order = random.Random(seed)
    ranks = [rank for rank in range(world) if rank != culprit]
    order.shuffle(ranks)
    out = [f"{rank}: step {step} loss {3 - step / 100:.3f} lr 1e-4" for step in range(12) for rank in (0, 1, 2)]
    blocks = [[f"{rank}: {line}" for line in order.choice(victims)(rank)] for rank in ranks]
    blocks.insert(world // 4, [f"{culprit}: {line}" for line in lines])
    out += [line for block in blocks for line in block]
    out.append("srun: error: n000: tasks 0-7: Aborted (core dumped)")
    return "\n".join(out) + "\n"


@pytest.mark.parametrize(
    ("victims", "world"),
    [*(([item], 64) for item in VICTIMS), (VICTIMS, 512)],
    ids=["watchdog", "nccl", "gloo", "recv", "all"],
)
@pytest.mark.parametrize("cause", CULPRITS)
def test_the_rank_that_failed_by_itself(cause: str, victims: list[Victim], world: int, rules: RuleSet) -> None:
    log = cascade(world, 17, raised(17, CULPRITS[cause]), victims, seed=world)
    answer = diagnose(FAILED, [scan_bytes(log.encode(), rules)])
    assert (answer.cause, answer.rank) == (cause, 17), answer.sentence


def test_a_rank_that_only_srun_saw_crash(rules: RuleSet) -> None:
    lines = [f"{rank}: {line}" for rank in range(256) if rank != 77 for line in remote(rank)]
    lines += ["srun: error: n009: task 77: Segmentation fault (core dumped)", "srun: error: n000: tasks 0-7: Aborted"]
    answer = diagnose(Facts(state="FAILED", exit_code=139), [scan_bytes("\n".join(lines).encode(), rules)])
    assert (answer.cause, answer.rank) == ("native_crash", 77), answer.sentence


def test_pdsh_and_deepspeed(rules: RuleSet) -> None:
    lines = [f"n1: [rank{rank}]: torch.distributed.DistBackendError: remote process exited" for rank in range(8)]
    lines += [f"n3: {line}" for line in raised(29, CULPRITS["cuda_oom"])]
    lines += ["n3: [2024-03-03 03:11:02] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = 1"]
    answer = diagnose(FAILED, [scan_bytes("\n".join(lines).encode(), rules)])
    assert (answer.cause, answer.rank) == ("cuda_oom", 29), answer.sentence


def test_jax_tasks_end_because_one_did(rules: RuleSet) -> None:
    unhealthy = (
        "{0}: 2024-06-22 08:12:33.1: E external/xla/xla/pjrt/distributed/client.cc:318] Coordination service agent is "
        "in error status: UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /task:19"
    )
    lines = [unhealthy.format(task) for task in range(64) if task != 19]
    lines += ["19: Traceback (most recent call last):", '19:   File "/deps/train.py", line 901, in <module>']
    lines += ["19: FloatingPointError: invalid value (nan) encountered in jit(train_step)"]
    answer = diagnose(FAILED, [scan_bytes("\n".join(lines).encode(), rules)])
    assert (answer.cause, answer.rank) == ("nan_loss", 19), answer.sentence
