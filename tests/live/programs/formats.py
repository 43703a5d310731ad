#!/usr/bin/env python3
"""A small real training that saves in the format that its first argument names, and damages what it saved.

A launch damages some of its checkpoints, each in another way, and dies. What it does is written down in
``steps.jsonl``: launch, step, loss.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

SAVE_EVERY, STEPS = 5, 30
DAMAGES = {  # launch, number of its save
    (0, 3): "truncate",
    (0, 4): "flip",
    (0, 5): "kill",
    (1, 2): "lose a part",
    (1, 3): "vanish",
}
DEADLY = ("kill", "vanish")
FOLDER = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"])
RESUME = os.environ["SLURMTRAIN_RESUME_FROM"]
LAUNCH = int(os.environ["SLURMTRAIN_LAUNCH"])


def note(step: int, loss: float) -> None:
    print(f"step {step}/{STEPS} loss {loss:.6f}", flush=True)
    with open("steps.jsonl", "a") as stream:
        stream.write(json.dumps({"launch": LAUNCH, "step": step, "loss": round(loss, 5)}) + "\n")


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 2))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return points, (points[:, 0] > 0).long()


# --- damage


def due(step: int, first: int) -> str:
    """The damage for the checkpoint of this step, where it is to have one."""
    return DAMAGES.get((LAUNCH, (step - first) // SAVE_EVERY), "") if step % SAVE_EVERY == 0 else ""


def die_in_the_save() -> None:
    """The kernel writes no further than this into a file, says so (SIGXFSZ), and that is the end."""
    signal.signal(signal.SIGXFSZ, lambda _number, _frame: os.kill(os.getpid(), signal.SIGKILL))
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))


def damage(way: str, checkpoint: Path) -> None:
    files = sorted(checkpoint.rglob("*") if checkpoint.is_dir() else [checkpoint], key=lambda path: path.stat().st_size)
    files = [path for path in files if path.is_file()]
    victim = files[-1]
    if way == "truncate":
        os.truncate(victim, victim.stat().st_size // 2)
    elif way == "flip":
        packed = [path for path in files if path.read_bytes()[:2] == b"PK"] or files
        data = bytearray(packed[-1].read_bytes())
        at = len(data) // 2 if data[:2] == b"PK" else 1  # of safetensors the header, for its tensors have no checksum
        data[at] ^= 4
        packed[-1].write_bytes(data)
    elif way == "lose a part":
        victim.unlink()
    elif way == "vanish":  # while it is read by the check, which has a format for this (test_formats.py)
        (FOLDER / ".vanish").write_text(checkpoint.name)
    if way in DEADLY:
        os.kill(os.getpid(), signal.SIGKILL)


# --- a plain loop, for formats that are only a way to write


def train(save: Callable[[Any, Any, int], Path], load: Callable[[Any, Any], int]) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = first = load(model, optimizer) if RESUME else 0
    while step < STEPS:
        points, labels = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        step += 1
        note(step, loss.item())
        if step % SAVE_EVERY == 0:
            way = due(step, first)
            if way == "kill":
                die_in_the_save()
            path = save(model, optimizer, step)
            if way:
                damage(way, path)


def train_torch() -> None:
    def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Path:
        path = FOLDER / f"step-{step:03d}.pt"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path)
        return path

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        state = torch.load(RESUME, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    train(save, load)


def train_safetensors() -> None:
    from safetensors.torch import load_file, save_file

    def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Path:
        path = FOLDER / f"step-{step:03d}.safetensors"
        tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
        for number, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
        save_file(tensors, path, metadata={"step": str(step)})
        return path

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        tensors = load_file(RESUME)
        model.load_state_dict({n.removeprefix("model."): v for n, v in tensors.items() if n.startswith("model.")})
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, number, moment = name.split(".")
                state.setdefault(int(number), {})[moment] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        return int(Path(RESUME).stem.rpartition("-")[2])

    train(save, load)


def train_dcp() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def save(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Path:
        path = FOLDER / f"step-{step:03d}"
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=path)
        return path

    def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=RESUME)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        return int(Path(RESUME).name.rpartition("-")[2])

    train(save, load)


def train_deepspeed() -> None:
    """Two ranks that share the optimizer's state (ZeRO 1), and resume from what DeepSpeed's own ``latest`` names."""
    os.environ |= {
        "DS_ACCELERATOR": "cpu",
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": os.environ["SLURM_NTASKS"],
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20000 + int(os.environ["SLURM_JOB_ID"]) % 10000 * 2 + LAUNCH % 2),
    }
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()  # nothing is compiled
    config = {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 16,
        "zero_optimization": {"stage": 1},
    }
    model, rank = network(), int(os.environ["RANK"])
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    deepspeed.init_distributed("gloo", verbose=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=config)
    if RESUME:
        path, _ = engine.load_checkpoint(str(FOLDER))
        assert Path(path).parent == Path(RESUME), (path, RESUME)
    step = first = engine.global_steps
    while step < STEPS:
        points, labels = batch(step)
        loss = nn.functional.cross_entropy(engine(points), labels)
        engine.backward(loss)
        engine.step()
        step += 1
        if rank == 0:
            note(step, loss.item())
        if step % SAVE_EVERY == 0:
            way = due(step, first) if rank == 0 else ""
            if way == "kill":
                die_in_the_save()
            engine.save_checkpoint(str(FOLDER), tag=f"global_step{step}")
            if way:
                damage(way, FOLDER / f"global_step{step}")
            torch.distributed.barrier()


class Batches(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The batches of the plain loop, one after the other."""

    def __len__(self) -> int:
        return STEPS * 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        points, labels = batch(index // 16)
        return {"points": points[index % 16], "labels": labels[index % 16]}


def train_lightning() -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def training_step(self, *_of_the_loader: Any) -> torch.Tensor:
            """In the middle of an epoch Lightning resumes with the loader's first batch: here they go by the step."""
            points, labels = batch(self.trainer.global_step)
            return nn.functional.cross_entropy(self.model(points), labels)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Damage(pl.Callback):
        def __init__(self) -> None:
            self.first = 0

        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.first = trainer.global_step

        def on_train_batch_start(self, trainer: pl.Trainer, *_rest: Any) -> None:
            step = trainer.global_step  # what it had saved is whole by now, and older ones are rotated away
            if step > self.first and (way := due(step, self.first)):
                damage(way, FOLDER / f"step-step={step}.ckpt")

        def on_train_batch_end(
            self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *_rest: Any
        ) -> None:
            note(trainer.global_step, float(outputs["loss"]))
            if due(trainer.global_step, self.first) == "kill":
                die_in_the_save()

    saver = pl.callbacks.ModelCheckpoint(
        FOLDER, filename="step-{step}", every_n_train_steps=SAVE_EVERY, save_top_k=3, monitor="step", mode="max"
    )
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Damage(), saver], default_root_dir=FOLDER.parent,
    )  # fmt: skip
    loader = torch.utils.data.DataLoader(Batches(), batch_size=16)
    trainer.fit(Module(), loader, ckpt_path=RESUME or None)


def train_trainer() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = network()

        def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.model(points)
            return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

    class Damage(TrainerCallback):  # type: ignore[misc]
        first = 0

        def on_train_begin(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            self.first = state.global_step

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_rest: Any) -> None:
            if logs and "loss" in logs:
                note(state.global_step, float(logs["loss"]))

        def on_step_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            if due(state.global_step, self.first) == "kill":
                die_in_the_save()

        def on_save(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            if way := due(state.global_step, self.first):
                damage(way, FOLDER / f"checkpoint-{state.global_step}")

    args = TrainingArguments(
        output_dir=str(FOLDER), per_device_train_batch_size=16, max_steps=STEPS, save_steps=SAVE_EVERY, logging_steps=1,
        learning_rate=1e-3, lr_scheduler_type="constant", report_to=[], use_cpu=True, disable_tqdm=True,
        dataloader_num_workers=0, seed=3, save_total_limit=3,
    )  # fmt: skip
    trainer = Trainer(Model(), args, train_dataset=Batches(), callbacks=[Damage()])
    trainer.train(resume_from_checkpoint=RESUME or None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    globals()[f"train_{sys.argv[1]}"]()
