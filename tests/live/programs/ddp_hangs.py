#!/usr/bin/env python3
"""A real DDP training in which rank 1 stands still in each of the first launches, each time in another way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

STEPS, SAVE_EVERY, HANG_AFTER = 25, 2, 5
WAYS = ("lock", "collective", "loader", "stopped")
loaded = threading.Event()


def say_that_it_loads() -> None:
    while not loaded.wait(1.0):
        print("loading", flush=True)


threading.Thread(target=say_that_it_loads, daemon=True).start()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


def stand_in_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def enter_a_collective_alone(group: dist.ProcessGroup) -> None:
    dist.all_reduce(torch.zeros(1), group=group)


def load_for_ever() -> Iterator[torch.Tensor]:
    while True:
        time.sleep(0.01)  # looks for a sample that never comes
    yield torch.zeros(1)


def misbehave(way: str, group: dist.ProcessGroup) -> None:
    if way == "lock":
        stand_in_a_lock()
    elif way == "collective":
        enter_a_collective_alone(group)
    elif way == "loader":
        next(load_for_ever())
    elif way == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


def save(folder: Path, state: dict[str, object], step: int) -> None:
    temporary = folder / f".step-{step:03d}.pt.tmp"
    torch.save(state, temporary)
    temporary.replace(folder / f"step-{step:03d}.pt")


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    group, rank = dist.new_group(), dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    folder, launch, step = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"]), int(os.environ["SLURMTRAIN_LAUNCH"]), 0
    if path := os.environ["SLURMTRAIN_RESUME_FROM"]:
        state = torch.load(path, weights_only=True)
        model.module.load_state_dict(state["model"])
        step = state["step"]
    way = WAYS[launch] if launch < len(WAYS) else ""
    first = step
    loaded.set()
    while step < STEPS:
        if rank == 1 and step - first == HANG_AFTER:
            misbehave(way, group)
        generator = torch.Generator().manual_seed(step * 100 + rank)
        points = torch.randn(16, 8, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), (points[:, 0] > 0).long())
        loss.backward()
        optimizer.step()
        step += 1
        if rank == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.6f}", flush=True)
            if step % SAVE_EVERY == 0:
                save(folder, {"model": model.module.state_dict(), "step": step}, step)
        time.sleep(0.1)
    if rank == 0:
        Path(os.environ["SLURMTRAIN_DONE_FILE"]).touch()
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
