"""Which scenes of a run are kept whole: the first launches' and the newest ones'. Of the others the manifests stay."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.errors import StoreError
from slurmtrain.evidence.manifest import MANIFEST, has_scene, scene_dir
from slurmtrain.store.rundir import AttemptDir, RunDir

_THINNED = ".thinned"  # in a scene's folder: nothing is left to be removed


def scenes_of(run: RunDir) -> list[tuple[int, int, Path]]:
    """(attempt, launch, its folder) of all launches that have a scene, oldest first. Raises ``StoreError``."""
    found = []
    for attempt in run.read_attempts():
        for number in launch_numbers(attempt):
            if has_scene(attempt.launch(number)):
                found.append((attempt.number, number, attempt.launch(number)))
    return found


def thin_scenes(run: RunDir, first: int, last: int) -> list[Path]:
    """Remove what the scenes between the ``first`` and the ``last`` ones hold beside their manifests; those scenes.

    Raises ``StoreError`` where the attempts cannot be listed; what cannot be removed stays.
    """
    between = [folder for _, _, folder in scenes_of(run)][first : -last or None]
    thinned = []
    for launch_dir in between:
        folder = scene_dir(launch_dir)
        if not (folder / _THINNED).exists():
            _thin(folder)
            thinned.append(folder)
    return thinned


def is_thinned(launch_dir: Path) -> bool:
    """Whether only the manifests are left."""
    return (scene_dir(launch_dir) / _THINNED).exists()


def _thin(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for node in os.scandir(folder):
            if node.is_dir(follow_symlinks=False):
                _keep_manifest(Path(node.path))
        (folder / _THINNED).touch(mode=0o600)


def _keep_manifest(node: Path) -> None:
    for entry in os.scandir(node):
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != MANIFEST:
                Path(entry.path).unlink()


def launch_numbers(attempt: AttemptDir) -> Iterator[int]:
    """The launches that have a folder, in order. Raises ``StoreError``."""
    folder = attempt.path / "launches"
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return
    except OSError as exc:
        raise StoreError(f"cannot list {folder}: {exc.strerror or exc}") from exc
    yield from sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)
