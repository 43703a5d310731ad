#!/usr/bin/env python3
"""Trainings with Lightning, the Hugging Face Trainer, accelerate and JAX as their users write them, with our helper.

The data comes from a worker process, as it usually does. All else is at the default of both sides; in particular
Lightning's own support for Slurm is on. A start writes a line.
A file ``finish`` makes the steps that are left quick, a file ``die`` kills the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import slurmtrain_training as st
import torch
from torch import nn

# Lightning's are shorter than the time in which the wish to stop comes after a preemption's SIGTERM.
STEPS, PACE_S = (5000, 0.05) if sys.argv[1:] == ["lightning"] else (400, 0.4)


def started(step: int) -> None:
    with open("starts.jsonl", "a") as stream:
        launch = f"{os.environ['SLURMTRAIN_ATTEMPT']}.{os.environ['SLURMTRAIN_LAUNCH']}"
        stream.write(json.dumps({"launch": launch, "step": step}) + "\n")


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not Path("finish").exists():
            time.sleep(PACE_S)
        if st.rank() == 0 and Path("die").exists():
            Path("die").unlink()
            os.kill(os.getppid() if torch.utils.data.get_worker_info() else os.getpid(), signal.SIGKILL)
        return {"points": torch.full((4,), index / STEPS), "labels": torch.tensor(index % 2)}


def train_alone() -> None:
    """Without a word of slurmtrain: Lightning saves, requeues and resumes by itself."""
    train_lightning(alone=True)


def train_lightning(*, alone: bool = False) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def on_train_start(self) -> None:
            if self.trainer.is_global_zero:
                started(self.trainer.global_step)

        def training_step(self, rows: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.model(rows["points"]), rows["labels"])
            if self.trainer.is_global_zero:
                print(f"step {self.trainer.global_step + 1}/{STEPS} loss {loss.item():.4f}", flush=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = pl.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), max_epochs=1, logger=False, enable_progress_bar=False,
        callbacks=[] if alone else [st.lightning_callback()], default_root_dir=st.checkpoint_dir(),
    )  # fmt: skip
    print(f"cluster environment: {type(trainer._accelerator_connector.cluster_environment).__name__}", flush=True)
    trainer.fit(
        Module(),
        torch.utils.data.DataLoader(Rows(), batch_size=1, num_workers=1),
        ckpt_path=None if alone else st.resume_from(),
    )


def train_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(4, 2)

        def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.model(points)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class Note(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            started(state.global_step)

    args = TrainingArguments(
        output_dir=str(st.checkpoint_dir()), per_device_train_batch_size=1, max_steps=STEPS, logging_steps=1,
        report_to=[], use_cpu=True, dataloader_num_workers=1,
    )  # fmt: skip
    trainer = Trainer(Model(), args, train_dataset=Rows(), callbacks=[Note(), st.trainer_callback()])
    trainer.train(resume_from_checkpoint=str(st.resume_from() or "") or None)


def train_accelerate() -> None:
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    step = 0
    if path := st.resume_from():
        accelerator.load_state(str(path))
        step = int(Path(path).name.rpartition("-")[2])
    started(step)
    rows = torch.utils.data.Subset(Rows(), range(step, STEPS))
    for row in torch.utils.data.DataLoader(rows, batch_size=None, num_workers=1):
        loss = nn.functional.cross_entropy(model(row["points"]), row["labels"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        step += 1
        print(f"step {step}/{STEPS} loss {loss.item():.4f}", flush=True)
        if st.leave_accelerate(accelerator, step):
            return
    st.done()


def train_jax() -> None:
    """Two processes, with JAX's own handler for SIGTERM."""
    import jax
    import numpy as np

    where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    jax.distributed.initialize(where, int(os.environ["WORLD_SIZE"]), st.rank())
    weights, step = np.full(4, 0.1), 0
    if path := st.resume_from():
        with np.load(path) as saved:
            weights, step = saved["weights"], int(saved["step"])
    if st.rank() == 0:
        started(step)
    gradient = jax.jit(jax.value_and_grad(lambda weights, points: ((weights * points).sum() - 1) ** 2))
    rows = Rows()
    while step < STEPS:
        loss, slope = gradient(weights, rows[step]["points"].numpy())
        weights, step = weights - 0.1 * slope, step + 1
        print(f"step {step}/{STEPS} loss {loss:.4f}", flush=True)
        st.heartbeat(step=step)
        if st.should_stop():
            if st.rank() == 0:
                with st.atomic_save(st.checkpoint_dir() / f"step-{step}.npz") as place:
                    np.savez(place, weights=weights, step=step)
            return
    st.done()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[f"train_{sys.argv[1]}"]()
