"""State of AMD GPUs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 15
SIZE_LIMIT = 1 << 20
DRIVER = True


def collect(scene: Scene) -> None:
    version = Path("/sys/module/amdgpu/version")
    if version.exists():
        scene.write("driver-version.txt", version.read_text(errors="replace"))
    commands = {"amd-smi": ("metric",), "rocm-smi": ("-a", "--showtopo")}
    tool = next((name for name in commands if shutil.which(name)), None)
    if tool is None:
        return  # not noted: most nodes have no AMD GPU, and those that have one have a tool
    done = scene.run(tool, *commands[tool], timeout_s=12)
    if done.stdout.strip():
        scene.write(f"{tool}.txt", done.stdout)
    if not done.ok and done.returncode != 124:
        scene.note(
            f"{tool} ended with {done.returncode}: {(done.stderr.strip() or 'it said nothing').splitlines()[-1]}"
        )
