"""Which code ran: commit and changes of the working directory, packages of the training's Python, hashes of spec and
scripts."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from slurmtrain.errors import SlurmtrainError
from slurmtrain.evidence.packages import find_python, list_packages
from slurmtrain.evidence.worktree import read_worktree
from slurmtrain.store.rundir import RunDir

if TYPE_CHECKING:
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 20
SIZE_LIMIT = 2 << 20
WHERE = "batch_host"
_FILES = ("spec.yaml", "job.sbatch", "launch.sh", "rules.json", "agent.pyz", "collectors.json")


def collect(scene: Scene) -> None:
    for name in _FILES:
        path = scene.run_dir / name
        if path.is_file():
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}")
    for name, text in read_worktree(scene.work_dir, scene.run, scene.note).items():
        scene.write(name, text)
    command = _command(scene)
    python = find_python(command, scene.environ, scene.work_dir)
    if python is None:
        scene.note("no Python in the training's command or PATH: no list of packages")
        return
    packages = list_packages(python, scene.run)
    if packages:
        scene.write("packages.txt", f"# {python}\n" + "\n".join(packages) + "\n")
    else:
        scene.note(f"{python} tells no packages")


def _command(scene: Scene) -> tuple[str, ...]:
    try:
        return RunDir(scene.run_dir).read_plan().spec.command
    except SlurmtrainError as exc:
        scene.note(str(exc))
        return ()
