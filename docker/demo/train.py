#!/usr/bin/env python3
"""Trains a small neural network on scikit-learn's handwritten digits, data-parallel over any number of ranks.

A training like any other: it writes checkpoints, resumes from one, and saves and leaves when it is asked to. What it
takes from slurmtrain are six variables of its environment; without them it runs just as well.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: four ranks share a small machine

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
from allreduce import AllReduce, PeerLostError, Vector, World, read_world
from checkpoints import Arrays
from faults import FaultInjector, parse_fault
from sklearn.datasets import load_digits

HIDDEN, CLASSES = 64, 10
LEARNING_RATE, MOMENTUM = 0.1, 0.9


class Stop:
    """Whether somebody asked for the end: by signal (this rank only) or by the stop file (rank 0 looks)."""

    def __init__(self, rank: int) -> None:
        self._signalled = False
        path = os.environ.get("SLURMTRAIN_STOP_FILE")
        self._file = Path(path) if path and rank == 0 else None
        for number in (signal.SIGUSR2, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._signalled = True

    @property
    def wanted(self) -> bool:
        return self._signalled or (self._file is not None and self._file.exists())


class Data:
    """Digits of 8 x 8 pixels; every fifth is kept for the test."""

    def __init__(self) -> None:
        pixels, labels = load_digits(return_X_y=True)
        pixels = pixels / 16.0
        test = np.arange(len(labels)) % 5 == 0
        self.train = pixels[~test], labels[~test]
        self.test = pixels[test], labels[test]

    def batch(self, step: int, size: int, seed: int, world: World) -> tuple[Vector, Vector]:
        """This rank's share of the batch of a step: the same in every launch, however often it is restarted."""
        pixels, labels = self.train
        per_epoch = len(labels) // size
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(len(labels))
        chosen = order[place * size : (place + 1) * size][world.rank :: world.size]
        return pixels[chosen], labels[chosen]


def new_model(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    weights = {
        "w1": random.normal(0, 1 / 8, (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": random.normal(0, 1 / 8, (HIDDEN, CLASSES)),
        "b2": np.zeros(CLASSES),
    }
    return {**weights, **{f"m_{name}": np.zeros_like(value) for name, value in weights.items()}}


def forward(model: Arrays, pixels: Vector) -> tuple[Vector, Vector]:
    """Hidden layer and class probabilities."""
    hidden = np.maximum(pixels @ model["w1"] + model["b1"], 0.0)
    logits = hidden @ model["w2"] + model["b2"]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def gradients(model: Arrays, pixels: Vector, labels: Vector) -> tuple[Arrays, float, float]:
    """Sums over the samples (not means): gradient per weight, loss, number of right answers."""
    hidden, chance = forward(model, pixels)
    rows = np.arange(len(labels))
    loss = float(-np.log(chance[rows, labels] + 1e-12).sum())
    right = float((chance.argmax(axis=1) == labels).sum())
    error = chance.copy()
    error[rows, labels] -= 1.0
    back = (error @ model["w2"].T) * (hidden > 0)
    grads = {"w1": pixels.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
    return grads, loss, right


def apply(model: Arrays, grads: Arrays) -> None:
    for name, gradient in grads.items():
        model[f"m_{name}"] = MOMENTUM * model[f"m_{name}"] - LEARNING_RATE * gradient
        model[name] = model[name] + model[f"m_{name}"]


class Training:
    """One launch of the training, from its first to its last step."""

    def __init__(self, args: argparse.Namespace, world: World) -> None:
        self._args, self._world = args, world
        self._data = Data()
        self._stop = Stop(world.rank)
        self._fault = FaultInjector(args.fault, Path("faults"), world.rank, world.size)
        self._folder = Path(os.environ.get("SLURMTRAIN_CHECKPOINT_DIR") or "checkpoints")
        self._model, self._step, self._history = self._begin()
        self._reduce = AllReduce(world)

    def _begin(self) -> tuple[Arrays, int, list[Any]]:
        """Model, steps done, and where each launch so far began."""
        resume = os.environ.get("SLURMTRAIN_RESUME_FROM", "")
        launch = f"{os.environ.get('SLURMTRAIN_ATTEMPT', '0')}.{os.environ.get('SLURMTRAIN_LAUNCH', '0')}"
        if not resume:
            self._say(f"starts anew with {self._world.size} ranks")
            return new_model(self._args.seed), 0, [[launch, 0]]
        model, facts = checkpoints.load(Path(resume))
        self._say(f"resumes from {Path(resume).name} with {self._world.size} ranks")
        return model, facts["step"], [*facts["history"], [launch, facts["step"]]]

    def run(self) -> int:
        while self._step < self._args.steps:
            self._fault.at_step(self._step)
            stop = self._one_step()
            self._step += 1
            if stop:
                self._save()
                self._say(f"was asked to stop: saved at step {self._step}, leaves")
                return 0
            if self._step % self._args.checkpoint_every == 0:
                self._save()
        return self._finish()

    def _one_step(self) -> bool:
        """All ranks learn from one batch, and agree whether to stop."""
        time.sleep(self._args.pace)
        pixels, labels = self._data.batch(self._step, self._args.batch, self._args.seed, self._world)
        grads, loss, right = gradients(self._model, pixels, labels)
        extra = np.array([float(len(labels)), loss, right, float(self._stop.wanted)])
        total = self._reduce.sum(np.concatenate([*(g.ravel() for g in grads.values()), extra]))
        count, loss, right, stop = total[-4:]
        offset = 0
        for name, gradient in grads.items():
            grads[name] = total[offset : offset + gradient.size].reshape(gradient.shape) / count
            offset += gradient.size
        apply(self._model, grads)
        if (self._step + 1) % 10 == 0:
            self._say(f"step {self._step + 1}/{self._args.steps} loss {loss / count:.4f} accuracy {right / count:.3f}")
        return bool(stop)

    def _finish(self) -> int:
        pixels, labels = self._data.test
        accuracy = float((forward(self._model, pixels)[1].argmax(axis=1) == labels).mean())
        self._save(accuracy=accuracy)
        self._say(f"has finished: accuracy {accuracy:.3f} on {len(labels)} digits it never saw")
        done = os.environ.get("SLURMTRAIN_DONE_FILE")
        if done and self._world.rank == 0:
            Path(done).touch()
        return 0

    def _save(self, **facts: float) -> None:
        if self._world.rank == 0:
            checkpoints.save(self._folder, self._step, self._model, {**facts, "history": self._history})

    def _say(self, text: str) -> None:
        if self._world.rank == 0:
            print(f"training: {text}" if not text.startswith("step") else text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=64, help="samples in a step, over all ranks")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--pace", type=float, default=0.1, metavar="SECONDS", help="pretend that a step takes so long")
    parser.add_argument("--fault", type=parse_fault, metavar="STEP:KIND[:WHEN]", help="see faults.py")
    return parser.parse_args()


def main() -> int:
    world = read_world()
    try:
        return Training(parse_arguments(), world).run()
    except PeerLostError as exc:
        print(f"training: rank {world.rank} cannot go on: {exc}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
