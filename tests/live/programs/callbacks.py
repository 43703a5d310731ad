#!/usr/bin/env python3
"""The helper's callbacks and ``atomic_save`` with the real packages, without a cluster; prints what happened as JSON.

``callbacks.py KIND OPTIONS``: the options are JSON. ``stop`` is the number of the batch in which it is asked to stop.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import slurmtrain_training as st
import torch
from torch import nn

BATCHES, EPOCHS = 10, 2
OPTIONS: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
steps: list[int] = []  # what the heartbeats told
batches: list[int] = []  # the step at which each batch was trained
evaluated: list[int] = []


def told(step: int | None = None, **_values: float) -> None:
    steps.append(-1 if step is None else step)


def make_batch(step: int) -> None:
    batches.append(step)
    if len(batches) == OPTIONS.get("stop"):
        ask()


def ask() -> None:
    if "only_rank" in OPTIONS:  # a signal comes to each at another time
        st._asked = st.rank() == OPTIONS["only_rank"]
        return
    Path(os.environ["SLURMTRAIN_STOP_FILE"]).touch()
    st._looked_at = -1e9


def tell(**more: Any) -> None:
    folder = st.checkpoint_dir()
    names = sorted(str(path.relative_to(folder)) for path in folder.glob("*")) if folder.exists() else []
    is_done = Path(os.environ["SLURMTRAIN_DONE_FILE"]).exists()
    found = {"steps": steps, "batches": batches, "evaluated": len(evaluated), "done": is_done, "saved": names, **more}
    print(json.dumps(found))


def try_lightning() -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)
            self.automatic_optimization = not OPTIONS.get("optimizers")

        def training_step(self, rows: torch.Tensor, index: int) -> torch.Tensor:
            make_batch(self.trainer.global_step)
            loss = self.model(rows).pow(2).mean()
            if not self.automatic_optimization:
                for optimizer in self.optimizers():
                    optimizer.zero_grad()
                    self.manual_backward(loss, retain_graph=True)
                    optimizer.step()
            return loss

        def validation_step(self, rows: torch.Tensor, index: int) -> None:
            evaluated.append(index)

        def configure_optimizers(self) -> Any:
            one = [torch.optim.SGD(self.parameters(), lr=0.01) for _ in range(OPTIONS.get("optimizers", 1))]
            return one[0] if self.automatic_optimization else one

    rows = torch.utils.data.DataLoader(torch.arange(float(BATCHES)).reshape(BATCHES, 1), batch_size=1)
    own = pl.callbacks.ModelCheckpoint(dirpath=st.checkpoint_dir(), save_top_k=-1)
    trainer = pl.Trainer(
        accelerator="cpu", devices=OPTIONS.get("ranks", 1), max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        num_sanity_val_steps=0, callbacks=[st.lightning_callback(), own], **OPTIONS.get("trainer", {}),
    )  # fmt: skip
    trainer.fit(Module(), rows, rows, ckpt_path=OPTIONS.get("resume"))
    if not trainer.is_global_zero:
        return
    newest = max(st.checkpoint_dir().glob("*.ckpt"), key=lambda path: path.stat().st_mtime)
    tell(newest=newest.name)


def try_trainer() -> None:
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(1, 1)

        def forward(self, points: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            (make_batch(trainer.state.global_step) if self.training else evaluated.append(0))  # type: ignore[func-returns-value]
            scores = self.model(points)
            return {"loss": (scores - labels).pow(2).mean(), "logits": scores}

    rows = [{"points": torch.tensor([float(n)]), "labels": torch.tensor([0.0])} for n in range(BATCHES)]
    args = TrainingArguments(
        output_dir=str(st.checkpoint_dir()), per_device_train_batch_size=1, per_device_eval_batch_size=1,
        num_train_epochs=EPOCHS, report_to=[], use_cpu=True, disable_tqdm=True, **OPTIONS.get("trainer", {}),
    )  # fmt: skip
    trainer = Trainer(Model(), args, train_dataset=rows, eval_dataset=rows, callbacks=[st.trainer_callback()])
    trainer.train(resume_from_checkpoint=OPTIONS.get("resume"))
    tell()


def try_accelerate() -> None:
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=OPTIONS["accumulate"]), nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    step = 0
    for index in range(BATCHES):
        with accelerator.accumulate(model):
            make_batch(step)
            accelerator.backward(model(torch.tensor([float(index)])).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
        step += accelerator.sync_gradients
        if st.leave_accelerate(accelerator, step):
            break
    tell()


def try_formats() -> None:
    """Each library loads what it wrote to the path that ``atomic_save`` handed out."""
    import keras
    import torch.distributed.checkpoint
    from safetensors.torch import load_file, save_file

    folder, values = Path("formats"), np.arange(6.0)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    with st.atomic_save(folder / "a-5.npy") as path:
        np.save(path, values)
    with st.atomic_save(folder / "b-5.npz") as path:
        np.savez(path, values=values)
    with st.atomic_save(folder / "c-5.pt") as path:
        torch.save({"values": values.tolist()}, path)
    with st.atomic_save(folder / "d-5.safetensors") as path:
        save_file({"values": torch.tensor(values)}, path)
    with st.atomic_save(folder / "e-5.keras") as path:
        model.save(path)
    with st.atomic_save(folder / "f-5.weights.h5") as path:
        model.save_weights(path)
    with st.atomic_save(folder / "g-5", folder=True) as path:
        torch.distributed.checkpoint.save({"values": torch.tensor(values)}, checkpoint_id=path)
    state = {"values": torch.zeros(6, dtype=torch.float64)}
    torch.distributed.checkpoint.load(state, checkpoint_id=folder / "g-5")
    loaded = [
        np.load(folder / "a-5.npy"), np.load(folder / "b-5.npz")["values"], torch.load(folder / "c-5.pt")["values"],
        load_file(folder / "d-5.safetensors")["values"].numpy(), state["values"].numpy(),
    ]  # fmt: skip
    same = [bool((np.asarray(one) == values).all()) for one in loaded]
    before, points = model.get_weights(), np.ones((1, 2))
    again = keras.models.load_model(folder / "e-5.keras")
    same.append(bool(np.allclose(again.predict(points, verbose=0), model.predict(points, verbose=0))))
    model.set_weights([weights * 0 for weights in before])
    model.load_weights(folder / "f-5.weights.h5")
    same.append(all(bool((one == other).all()) for one, other in zip(before, model.get_weights(), strict=True)))
    print(json.dumps({"same": same, "names": sorted(path.name for path in folder.iterdir())}))


def try_group() -> None:
    """All ranks learn what one of them was told, whatever the process group was made with."""
    torch.distributed.init_process_group(OPTIONS["backend"])
    rank = torch.distributed.get_rank()
    answers = [st.should_stop()]
    if rank == 1:
        st._asked = True
    answers += [st.should_stop(), st.should_stop(together=False)]
    every: list[Any] = [None, None]
    torch.distributed.all_gather_object(every, answers)
    if rank == 0:
        print(json.dumps(every))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    st.heartbeat = told
    globals()[f"try_{sys.argv[1]}"]()
