"""State, ECC counters, topology and NVLink counters of NVIDIA GPUs, and the version of their driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence.gpu_report import find_gpu_trouble, find_link_trouble

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 20
SIZE_LIMIT = 2 << 20
DRIVER = True
_COMMANDS = {
    "query.txt": ("-q",),
    "topology.txt": ("topo", "-m"),
    "nvlink.txt": ("nvlink", "-s"),
    "nvlink-errors.txt": ("nvlink", "-e"),
}
_TROUBLE = {"query.txt": find_gpu_trouble, "nvlink-errors.txt": find_link_trouble}


def collect(scene: Scene) -> None:
    version = Path("/proc/driver/nvidia/version")
    if version.exists():
        scene.write("driver-version.txt", version.read_text(errors="replace"))
    for name, arguments in _COMMANDS.items():
        done = scene.run("nvidia-smi", *arguments, timeout_s=9 if name == "query.txt" else 4)
        if done.stdout.strip():
            scene.write(name, done.stdout)
        for trouble in _TROUBLE.get(name, lambda _: [])(done.stdout):
            scene.note(trouble)
        if done.returncode in (124, 127):
            return  # it does not answer, or there is none: no use to ask again
        if not done.ok:
            said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
            scene.note(f"nvidia-smi {' '.join(arguments)} ended with {done.returncode}: {said}")
