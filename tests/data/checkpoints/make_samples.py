"""Writes the samples beside this file anew, each with the program whose format it is.

    pip install torch numpy safetensors h5py lightning transformers accelerate deepspeed orbax-checkpoint keras jax
    python make_samples.py [FORMAT…]

Models are tiny; what varies from one writing to the next (times, ids) is left as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def fresh(name: str) -> Path:
    target = HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    return target


def torch_state() -> dict[str, object]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 40, "args": {"lr": 0.1}}


def make_torch() -> None:
    import torch

    target = fresh("torch")
    torch.save(torch_state(), target / "step-000040.pt")
    torch.save(torch_state(), target / "old-000040.pth", _use_new_zipfile_serialization=False)
    torch.serialization.set_crc32_options(compute_crc32=False)
    torch.save(torch_state(), target / "nocrc-000040.pt")
    torch.serialization.set_crc32_options(compute_crc32=True)


def make_safetensors() -> None:
    import torch
    from safetensors.torch import save_file

    save_file(
        {"w": torch.ones(16, 4), "b": torch.zeros(4)}, fresh("safetensors") / "step-40.safetensors", {"step": "40"}
    )


def make_dcp() -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(torch_state(), checkpoint_id=fresh("dcp") / "step-40")


def make_lightning() -> None:
    import lightning as L
    import torch

    class Net(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: object, _index: int) -> object:
            return self.layer(batch).sum()

        def configure_optimizers(self) -> object:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)
    target = fresh("lightning")
    saver = L.pytorch.callbacks.ModelCheckpoint(target, every_n_train_steps=2, save_top_k=-1, save_last=True)
    L.Trainer(max_epochs=1, callbacks=[saver], logger=False, enable_progress_bar=False, accelerator="cpu").fit(
        Net(), data
    )


def make_trainer() -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    target = fresh("trainer")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(8)]
    args = TrainingArguments(
        str(target), max_steps=4, save_steps=2, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    Trainer(model=model, args=args, train_dataset=rows).train()
    model.save_pretrained(fresh("sharded") / "model-40", max_shard_size="2KB")


def make_deepspeed() -> None:
    target = fresh("deepspeed")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        __file__,
        "_deepspeed",
    ]
    subprocess.run([*command, str(target)], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    for script in target.glob("*.py"):  # programs that DeepSpeed lays beside its checkpoints
        script.unlink()


def rank_of_deepspeed(target: str) -> None:
    import deepspeed
    import torch

    deepspeed.init_distributed("gloo")
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    }
    config |= {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}}
    model = torch.nn.Linear(8, 2)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    engine.backward(engine(torch.ones(1, 8, dtype=torch.bfloat16)).sum())
    engine.step()
    engine.save_checkpoint(target, tag="global_step1")


def make_orbax() -> None:
    import jax.numpy as jnp
    import orbax.checkpoint as ocp

    target = fresh("orbax")
    with ocp.CheckpointManager(target) as manager:
        manager.save(40, args=ocp.args.StandardSave({"w": jnp.ones((8, 3)), "b": jnp.zeros(3)}))
        manager.wait_until_finished()


def make_keras() -> None:
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    target = fresh("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.save(target / "epoch-04.keras")
    model.save_weights(target / "epoch-04.weights.h5")


def make_numpy() -> None:
    import numpy as np

    target = fresh("numpy")
    np.save(target / "step-40.npy", np.arange(60.0).reshape(3, 20))
    np.savez(target / "step-40.npz", w=np.ones((4, 4)), step=40)
    np.savez_compressed(target / "packed-40.npz", w=np.arange(400.0), step=40)


if __name__ == "__main__":
    if sys.argv[1:2] == ["_deepspeed"]:
        rank_of_deepspeed(sys.argv[2])
    else:
        makers = {name[5:]: make for name, make in list(globals().items()) if name.startswith("make_")}
        for chosen in sys.argv[1:] or makers:
            makers[chosen]()
            print(chosen, "written")
