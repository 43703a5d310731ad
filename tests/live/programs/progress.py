#!/usr/bin/env python3
"""Small real trainings that tell how far they are in the words of their library, and by nothing else.

What is true is written down in ``steps.jsonl``: launch, step, loss, time. The first launch dies at step ``DIES_AT``, a
later one when a file ``die`` is there; there are no checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

EPOCHS, PER_EPOCH, PACE_S, DIES_AT = 40, 10, 0.25, 14
STEPS = EPOCHS * PER_EPOCH
LAUNCH = int(os.environ.get("SLURMTRAIN_LAUNCH", "0"))


def note(step: int, loss: float) -> None:
    """After each step."""
    time.sleep(PACE_S)
    with open("steps.jsonl", "a") as stream:
        stream.write(json.dumps({"launch": LAUNCH, "step": step, "loss": loss, "at": time.time()}) + "\n")
    if (LAUNCH == 0 and step == DIES_AT) or Path("die").exists():
        os.kill(os.getpid(), signal.SIGSEGV)


def train_tqdm() -> None:
    from tqdm import tqdm

    with tqdm(range(1, STEPS + 1)) as bar:
        for step in bar:
            loss = 4 / step
            bar.set_postfix(loss=loss)
            note(step, loss)


def train_json() -> None:
    for step in range(1, STEPS + 1):
        print(json.dumps({"step": step, "max_steps": STEPS, "loss": 4 / step, "lr": 0.1}), flush=True)
        note(step, 4 / step)


def train_keras() -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy as np

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        step = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.step += 1
            note(self.step, float(logs["loss"]))

    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    points = np.random.default_rng(1).normal(size=(PER_EPOCH * 4, 4))
    model.fit(
        points, points[:, :2], batch_size=4, epochs=EPOCHS, callbacks=[Note()], validation_data=(points, points[:, :2])
    )


def train_trainer() -> None:
    import torch
    from torch import nn
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return PER_EPOCH

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"points": torch.full((4,), index / PER_EPOCH), "labels": torch.tensor(index % 2)}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.model(points)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class Note(TrainerCallback):  # type: ignore[misc]
        loss = 0.0

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_rest: Any) -> None:
            self.loss = float(logs.get("loss", self.loss))

        def on_step_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            note(state.global_step, self.loss)

    args = TrainingArguments(
        output_dir="out", per_device_train_batch_size=1, num_train_epochs=EPOCHS, logging_steps=1, report_to=[],
        use_cpu=True, eval_strategy="steps", eval_steps=5, save_strategy="no",
    )  # fmt: skip
    Trainer(Model(), args, train_dataset=Rows(), eval_dataset=Rows(), callbacks=[Note()]).train()


def train_lightning() -> None:
    import lightning.pytorch as pl
    import torch
    from torch import nn

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def training_step(self, points: torch.Tensor) -> torch.Tensor:
            loss = self.model(points).pow(2).mean()
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def validation_step(self, points: torch.Tensor) -> None:
            self.log("val_loss", self.model(points).pow(2).mean())

        def on_train_batch_end(self, outputs: Any, *_rest: Any) -> None:
            note(self.global_step, float(outputs["loss"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    rows = torch.utils.data.DataLoader(torch.rand(PER_EPOCH * 2, 4), batch_size=2)
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_checkpointing=False,
        callbacks=[pl.callbacks.TQDMProgressBar()],
    )  # fmt: skip
    trainer.fit(Module(), rows, rows)


if __name__ == "__main__":
    globals()[f"train_{sys.argv[1]}"]()
