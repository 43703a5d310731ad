"""The crashed container as an image beside the launch. Only where the job file asks, and after a launch that failed."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from slurmtrain.evidence import container_save as save
from slurmtrain.store.rundir import RunDir

if TYPE_CHECKING:
    from slurmtrain.core.spec import Spec
    from slurmtrain.evidence.scene import Scene

TIME_LIMIT_S = 600  # the budget of the scene ends it earlier
SIZE_LIMIT = 64 << 30
ENDINGS = ("failed", "hung")
_LONG_S = 580.0
_UNITS = {"k": 10, "m": 20, "g": 30, "t": 40}


def collect(scene: Scene) -> None:
    spec = RunDir(scene.run_dir).read_plan().spec
    if not spec.container.save:
        return
    container, why = _find(scene, spec)
    if container is None:
        if scene.batch_host:
            scene.note(why or "the training runs in no container that is known here: nothing to save")
        return
    limit = _bytes(spec.container.size_limit)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (min(limit, hard), hard))  # the programs that write end there
    folder = scene.launch_dir / "images"
    folder.mkdir(mode=0o700, exist_ok=True)
    if container.kind == save.ENROOT:
        _save_enroot(scene, container, folder / f"{scene.node}.sqsh")
    elif scene.batch_host and container.kind == save.OVERLAY:
        _save_overlay(scene, Path(container.name), folder, limit)
    elif scene.batch_host:
        _save_engine(scene, container, folder / f"{scene.node}.tar", limit)


def _find(scene: Scene, spec: Spec) -> tuple[save.Container | None, str]:
    restart = scene.environ.get("SLURM_RESTART_COUNT", "0")
    job = scene.environ.get("SLURM_JOB_ID", scene.job_id)
    name = f"slurmtrain-{job}-{restart}-{scene.launch}"
    return save.find_container(spec.command, spec.srun_options, scene.environ, scene.work_dir, name)


def _save_enroot(scene: Scene, container: save.Container, target: Path) -> None:
    """On the node of the batch script; on all nodes a container of ours is then removed, it would fill their disks."""
    listed = scene.run("enroot", "list", timeout_s=5)
    name = save.find_enroot_name(listed.stdout, container.name, scene.environ.get("SLURM_JOB_ID", scene.job_id))
    if not name:
        scene.note(f"enroot has no container of the name {container.name} on this node")
        return
    if scene.batch_host:
        done = scene.run(*save.build_enroot_export(name, target), timeout_s=_LONG_S)
        _tell(scene, target, done.ok, done.stderr)
    if container.name.startswith("slurmtrain-"):
        scene.run(*save.build_enroot_remove(name), timeout_s=30)


def _save_overlay(scene: Scene, overlay: Path, folder: Path, limit: int) -> None:
    if overlay.is_dir():
        scene.note(f"the overlay is a folder and stays as it is: {overlay}")
        return
    target = folder / overlay.name
    try:
        if overlay.stat().st_blocks * 512 > limit:
            scene.note(f"the overlay {overlay} is larger than container.size_limit and is not copied")
            return
        shutil.copyfile(overlay, target)
    except OSError as exc:
        _tell(scene, target, False, exc.strerror or str(exc))
        return
    _tell(scene, target, True, "")


def _save_engine(scene: Scene, container: save.Container, target: Path, limit: int) -> None:
    size = scene.run(*save.build_size(container), timeout_s=30)
    if not size.ok or not size.stdout.strip().isdigit():
        scene.note(f"{container.program} has no container {container.name}: {size.stderr.strip()}")
        return
    if int(size.stdout) > limit:
        scene.note(f"the container {container.name} has {int(size.stdout) >> 30} GiB, more than container.size_limit")
        return
    image = f"slurmtrain-crash:{scene.job_id}-{scene.attempt}-{scene.launch}"
    done = scene.run(*save.build_commit(container, image), timeout_s=_LONG_S)
    if done.ok:
        done = scene.run(*save.build_save(container, image, target), timeout_s=_LONG_S)
        scene.run(*save.build_remove_image(container, image), timeout_s=30)
    _tell(scene, target, done.ok, done.stderr)


def _tell(scene: Scene, target: Path, ok: bool, error: str) -> None:
    if ok and target.exists():
        target.chmod(0o600)
        scene.note(f"the container is saved: {target} ({target.stat().st_size >> 20} MiB)")
        return
    target.unlink(missing_ok=True)
    said = error.strip().rpartition("\n")[2] or "it was ended, or reached container.size_limit"
    scene.note(f"the container could not be saved: {said}")


def _bytes(size: str) -> int:
    text = size.lower().removesuffix("b")
    return int(text[:-1]) << _UNITS[text[-1]] if text[-1] in _UNITS else int(text) << 20
