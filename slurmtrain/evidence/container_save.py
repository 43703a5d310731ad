"""Saving a container that has crashed: which commands its run-time needs. Nothing is run here.

- pyxis: the launch script gives the container a name of its launch, so that it outlives the step; enroot calls it
  ``pyxis_NAME`` or ``pyxis_JOB_NAME`` (pyxis, container_scope), and ``enroot export`` makes a squashfs file of it.
- apptainer: what was written is in an overlay (``--overlay``, APPTAINER_OVERLAY), if there is a writable one.
- docker, podman: a container that was started with ``--name`` or ``--cidfile`` and without ``--rm`` is still there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENROOT, OVERLAY, ENGINE = "enroot", "overlay", "engine"
_ENGINES = ("docker", "podman")


@dataclass(frozen=True, slots=True)
class Container:
    """What can be saved: ``name`` is enroot's, or the engine's name or id; of apptainer the path of the overlay."""

    kind: str
    name: str
    program: str = ""  # docker or podman


def find_container(
    command: Sequence[str], srun_options: Sequence[str], environ: Mapping[str, str], folder: Path, pyxis_name: str
) -> tuple[Container | None, str]:
    """The container of a launch, or why none can be saved; "" where there is no sign of one."""
    if any(option.startswith("--container-image") for option in srun_options):
        given = next((o.partition("=")[2] for o in srun_options if o.startswith("--container-name=")), "")
        return Container(ENROOT, given.partition(":")[0] or pyxis_name), ""
    overlay = _option(command, "--overlay") or environ.get("APPTAINER_OVERLAY") or environ.get("SINGULARITY_OVERLAY")
    if overlay and not overlay.endswith(":ro"):
        return Container(OVERLAY, os.path.normpath(folder / overlay.removesuffix(":rw").split(",")[0])), ""
    words = {Path(word).name for word in command[:6]}
    if (
        environ.get("APPTAINER_CONTAINER")
        or environ.get("SINGULARITY_CONTAINER")
        or words & {"apptainer", "singularity"}
    ):
        return None, "apptainer's image cannot change and there is no writable overlay (--overlay): nothing to save"
    program = next((Path(word).name for word in command[:6] if Path(word).name in _ENGINES), "")
    return _of_engine(program, command, folder) if program else (None, "")


def _of_engine(program: str, command: Sequence[str], folder: Path) -> tuple[Container | None, str]:
    if "--rm" in command:
        return None, f"{program} run --rm removes the container before it can be saved: leave --rm out"
    name = _option(command, "--name")
    cidfile = _option(command, "--cidfile")
    if not name and cidfile:
        try:
            name = (folder / cidfile).read_text("ascii")[:64].strip()
        except (OSError, UnicodeDecodeError):
            name = ""
    if not name or name.startswith("-"):
        return None, f"give the container a name ({program} run --name NAME), or it cannot be found"
    return Container(ENGINE, name, program), ""


def _option(command: Sequence[str], name: str) -> str:
    for at, word in enumerate(command):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name and at + 1 < len(command):
            return command[at + 1]
    return ""


def find_enroot_name(listed: str, name: str, job_id: str) -> str:
    """Its name in the output of ``enroot list``; "" where it is not there."""
    wanted = (f"pyxis_{job_id}_{name}", f"pyxis_{name}")
    names = {line.split()[0] for line in listed.splitlines() if line.split()}
    return next((known for known in wanted if known in names), "")


def build_enroot_export(name: str, target: Path) -> list[str]:
    return ["enroot", "export", "--force", "--output", str(target), name]


def build_enroot_remove(name: str) -> list[str]:
    return ["enroot", "remove", "--force", name]


def build_size(container: Container) -> list[str]:
    """Prints the bytes of all layers."""
    return [container.program, "container", "inspect", "--size", "--format", "{{.SizeRootFs}}", container.name]


def build_commit(container: Container, image: str) -> list[str]:
    """The image keeps what ``docker run -e`` gave the container: secrets, too."""
    return [container.program, "commit", "--message", "slurmtrain: after a crash", container.name, image]


def build_save(container: Container, image: str, target: Path) -> list[str]:
    return [container.program, "save", "--output", str(target), image]


def build_remove_image(container: Container, image: str) -> list[str]:
    return [container.program, "rmi", image]
