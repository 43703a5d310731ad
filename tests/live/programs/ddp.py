#!/usr/bin/env python3
"""A real PyTorch DDP training over gloo: checkpoints in mid-epoch with torch.save, and every loss written down.

The loss of a step depends on everything before it (weights, optimizer, the order of samples), so a loss curve that
goes on after a restart exactly like that of an undisturbed run shows that all of it came back.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SAMPLES, FEATURES, CLASSES = 1920, 32, 5


class Stop:
    """Set by USR2 or TERM; all ranks agree on it, since each sees its own signal only."""

    def __init__(self) -> None:
        self._signalled = False
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signalled = True

    def agreed(self) -> bool:
        path = os.environ.get("SLURMTRAIN_STOP_FILE")
        wanted = torch.tensor([float(self._signalled or bool(path and Path(path).exists()))])
        dist.all_reduce(wanted)
        return bool(wanted.item())


def make_data(seed: int) -> TensorDataset:
    """Points labelled by a network that the model has to find."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(SAMPLES, FEATURES, generator=generator)
    hidden = torch.tanh(points @ torch.randn(FEATURES, 16, generator=generator) / 4)
    labels = (hidden @ torch.randn(16, CLASSES, generator=generator)).argmax(1)
    return TensorDataset(points, labels)


class Training:
    """All state that a checkpoint must bring back: model, optimizer, random numbers, epoch and place in it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.rank = args, dist.get_rank()
        torch.manual_seed(args.seed)
        network = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES))
        self.model = DistributedDataParallel(network)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.sampler = DistributedSampler(data := make_data(args.seed), shuffle=True, seed=args.seed)
        self.loader = DataLoader(data, batch_size=args.batch, sampler=self.sampler, drop_last=True)
        self.step = 0
        self.starts: list[str] = []
        self.folder = Path(os.environ.get("SLURMTRAIN_CHECKPOINT_DIR") or "checkpoints")
        self.stop = Stop()

    def resume(self) -> None:
        path = os.environ.get("SLURMTRAIN_RESUME_FROM")
        if path:
            state: dict[str, Any] = torch.load(path, weights_only=True)
            self.model.module.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.starts = state["step"], state["starts"]
        launch = f"{os.environ.get('SLURMTRAIN_ATTEMPT', '0')}.{os.environ.get('SLURMTRAIN_LAUNCH', '0')}"
        self.starts = [*self.starts, f"{launch}@{self.step}"]
        if self.rank == 0:
            where = f"resumes from {Path(path).name}" if path else "starts anew"
            print(f"{where} at step {self.step}, {dist.get_world_size()} ranks", flush=True)

    def save(self) -> None:
        if self.rank == 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            state = {
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "step": self.step,
                "starts": self.starts,
            }
            temporary = self.folder / f".step-{self.step:06d}.pt.tmp"
            torch.save(state, temporary)
            temporary.replace(self.folder / f"step-{self.step:06d}.pt")

    def run(self) -> int:
        per_epoch = len(self.loader)
        while self.step < self.args.steps:
            epoch, done = divmod(self.step, per_epoch)
            self.sampler.set_epoch(epoch)
            for place, (points, labels) in enumerate(self.loader):
                if place < done:
                    continue  # learnt from before the restart
                if self.learn(points, labels, epoch):
                    return 0
                if self.step >= self.args.steps:
                    break
        self.save()
        dist.barrier()
        if self.rank == 0:
            print(f"training finished after {self.step} steps", flush=True)
            if done := os.environ.get("SLURMTRAIN_DONE_FILE"):
                Path(done).touch()  # gloo's threads sometimes abort the interpreter while it shuts down
        return 0

    def learn(self, points: torch.Tensor, labels: torch.Tensor, epoch: int) -> bool:
        """One step; True when all ranks agreed to save and leave."""
        time.sleep(self.args.pace)
        torch.manual_seed(hash_of(self.args.seed, self.step, self.rank))  # dropout: the same in every launch
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(points), labels)
        loss.backward()
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        self.step += 1
        self.note(float(mean) / dist.get_world_size(), epoch)
        if self.stop.agreed():
            self.save()
            return True
        if self.step % self.args.checkpoint_every == 0:
            self.save()
        return False

    def note(self, loss: float, epoch: int) -> None:
        if self.rank == 0:
            print(f"epoch {epoch} step {self.step}/{self.args.steps} loss {loss:.6f}", flush=True)
            with open("losses.jsonl", "a") as stream:
                stream.write(json.dumps({"launch": self.starts[-1], "step": self.step, "loss": loss}) + "\n")


def hash_of(*numbers: int) -> int:
    return random.Random(str(numbers)).randrange(1 << 31)


def main() -> int:
    parser = argparse.ArgumentParser(description="DDP over gloo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--checkpoint-every", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(args)
    training.resume()
    code = training.run()
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    sys.exit(main())
