"""Checkpoints as the programs themselves wrote them."""

from __future__ import annotations

import shutil
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "data" / "checkpoints"
SAMPLES = {
    "torch/step-000040.pt": ("torch", 40),
    "torch/nocrc-000040.pt": ("torch", 40),
    "torch/old-000040.pth": ("torch-legacy", 40),
    "lightning/epoch=0-step=4.ckpt": ("torch", 4),
    "lightning/last.ckpt": ("torch", 4),
    "safetensors/step-40.safetensors": ("safetensors", None),
    "sharded/model-40": ("trainer", None),
    "trainer/checkpoint-4": ("trainer", 4),
    "dcp/step-40": ("dcp", None),
    "deepspeed/global_step1": ("deepspeed", 1),
    "orbax/40": ("orbax", 40),
    "keras/epoch-04.keras": ("zip", None),
    "keras/epoch-04.weights.h5": ("hdf5", None),
    "numpy/step-40.npy": ("npy", None),
    "numpy/step-40.npz": ("zip", None),
    "numpy/packed-40.npz": ("zip", None),
}


def copy(sample: str, folder: Path) -> Path:
    source, target = DATA / sample, folder / Path(sample).name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)
    return target


def files_of(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
