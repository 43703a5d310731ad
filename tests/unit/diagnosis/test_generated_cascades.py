"""Cascades of 8 to 256 ranks, made here: one rank fails, the others lose it, in every style of prefix and launcher."""

from __future__ import annotations

import random

import pytest

from slurmtrain.core.diagnose import diagnose
from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import RuleSet
from slurmtrain.logs.scan import scan_bytes

pytestmark = pytest.mark.one_python

ROOTS = {
    "gpu_ecc": "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "gpu_nvlink": "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "gpu_unavailable": "RuntimeError: No CUDA GPUs are available",
    "cuda_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.94 GiB.",
    "cuda_illegal_access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    "fs_io_error": "OSError: [Errno 116] Stale file handle: '/nfs/ds/a.bin'",
    "quota_exceeded": "OSError: [Errno 122] Disk quota exceeded: '/home/u7/.cache/x'",
    "disk_full": "OSError: [Errno 28] No space left on device: '/scratch/ck'",
    "resource_limit": "OSError: [Errno 24] Too many open files",
    "host_oom": "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 29.8 GiB for an array",
    "permission_denied": "PermissionError: [Errno 13] Permission denied: '/p/ck/rank.pt'",
    "remote_storage_error": "botocore.exceptions.ReadTimeoutError: Read timeout on endpoint URL: 's3.example.org'",
}
STYLES = {
    "srun --label": "{rank:>{width}}: {line}",
    "torch": "[rank{rank}]: {line}",
    "torchrun tee": "[default{local}]:[rank{rank}]: {line}",
    "mpirun": "[1,{rank}]<stderr>:{line}",
    "horovodrun": "[{rank}]<stderr>:{line}",
    "ray": "(RayTrainWorker pid={pid}, ip=10.0.{node}.{local}) [rank{rank}]: {line}",
    "logger": "[2026-03-11 04:31:{second:02d},{rank:03d}][rank {rank}][ERROR] {line}",
    "pdsh": "node{node:03d}: [rank{rank}]: {line}",
    "colours": "\x1b[36m{rank:>{width}}:\x1b[0m {line}\x1b[K",
}
TRACE = 'Traceback (most recent call last):\n  File "/home/u7/proj/train.py", line 140, in train\n    loss.backward()\n'
VICTIMS = {
    "watchdog": "[E311 04:31:02.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=712, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 "
    "milliseconds before timing out.\nterminate called after throwing an instance of 'c10::DistBackendError'",
    "remote": TRACE + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, remote process exited or "
    "there was a network error, NCCL version 2.26.2\nncclRemoteError: A call failed possibly due to a network error or "
    "a remote process exiting prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer n4<41111>",
    "gloo": TRACE + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[10.0.0.9]:1444",
    "horovod": TRACE
    + "horovod.common.exceptions.HorovodInternalError: ncclCommAbort was called; Horovod has been shut "
    "down. This was caused by an exception on one of the ranks",
    "store": "[W311 04:31:00.1 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=71): failed to recv, got 0 "
    "bytes\n" + TRACE + "torch.distributed.DistNetworkError: Connection reset by peer",
    "jax": "F0311 04:31:00.2 311 client.h:77] Terminating process because the JAX distributed service detected fatal "
    "errors. This most likely indicates that another task died; see the other task logs for more details.",
}


def printed(style: str, text: str, rank: int, world: int) -> list[str]:
    """The lines of one rank, in a launcher's style."""
    values = {
        "rank": rank,
        "local": rank % 8,
        "node": rank // 8,
        "pid": 4000 + rank,
        "second": rank % 50,
        "width": len(str(world - 1)),
    }
    return [STYLES[style].format(line=line, **values) + "\n" for line in text.split("\n")]


def woven(dice: random.Random, streams: list[list[str]]) -> str:
    """The lines of several ranks, mixed, each rank's in order."""
    left = [list(lines) for lines in streams]
    out: list[str] = []
    while left:
        lines = dice.choice(left)
        out.append(lines.pop(0))
        left = [item for item in left if item]
    return "".join(out)


def ended(dice: random.Random, rank: int) -> str:
    """What the launcher says at the end: srun's tasks, torchrun's summary, or nothing."""
    srun = (
        f"srun: error: n{rank // 8}: task {rank}: Exited with exit code 1\nsrun: Terminating StepId=81.0\n"
        "slurmstepd: error: *** STEP 81.0 ON n0 CANCELLED AT 2026-03-11T04:31:12 ***\n"
    )
    torchrun = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "Root Cause (first observed failure):\n[0]:\n"
        f"  host      : n{rank // 8}\n  rank      : {rank} (local_rank: {rank % 8})\n  exitcode  : 1 (pid: 77)\n"
    )
    return dice.choice([srun, torchrun, ""])


def cascade(seed: int) -> tuple[str, int, str]:
    """Cause, rank and log of one cascade; the same seed gives the same log."""
    dice = random.Random(seed)
    cause = list(ROOTS)[seed % len(ROOTS)]
    style = list(STYLES)[(seed // 2) % len(STYLES)]
    victim = list(VICTIMS.values())[(seed // 3) % len(VICTIMS)]
    world = dice.choice([8, 16, 32, 64, 128, 256])
    culprit = dice.randrange(world)
    shown = sorted({culprit, *dice.sample(range(world), min(world, 24))})
    steps = [[f"step {step} loss 2.{step:02d} lr 1e-4" for step in range(dice.randrange(3, 9))] for _ in shown]
    head = [printed(style, "\n".join(lines), rank, world) for rank, lines in zip(shown, steps, strict=True)]
    root = printed(style, TRACE + ROOTS[cause], culprit, world)
    others = [printed(style, victim.format(rank=rank), rank, world) for rank in shown if rank != culprit]
    late = others[:2] if seed % 4 == 3 else []
    body = woven(dice, late) + "".join(root) + woven(dice, others[len(late) :])
    return cause, culprit, woven(dice, head) + body + ended(dice, culprit)


@pytest.mark.parametrize("seed", range(108))
def test_the_rank_that_failed_is_found_among_all_that_lost_it(seed: int, rules: RuleSet) -> None:
    cause, rank, text = cascade(seed)
    answer = diagnose(Facts(state="FAILED", exit_code=1), [scan_bytes(text.encode(), rules)])
    assert (answer.cause, answer.rank) == (cause, rank), answer.sentence
