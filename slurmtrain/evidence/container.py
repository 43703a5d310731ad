"""Which container a launch ran in: what its run-time says in the environment and in files of known places."""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_NAMES = re.compile(
    r"SLURM_CONTAINER(_ID)?|SLURM_SPANK_.*_pyxis_.*|_?SLURM_SPANK_OPTION_pyxis_.*|PYXIS_.*|ENROOT_(VERSION|ROOTFS|IMAGE.*)"
    r"|(APPTAINER|SINGULARITY)_(CONTAINER|NAME|BIND|ENVIRONMENT)|container|CONTAINER_(ID|IMAGE|NAME|DIGEST)|NVIDIA_PRODUCT_NAME"
    r"|NVIDIA_(PYTORCH|TENSORFLOW|BUILD_ID|PYTORCH_VERSION).*|PYTORCH_BUILD_.*|UDOCKER_.*|CHARLIECLOUD_.*|SHIFTER_.*"
)  # fmt: skip
_LARGEST = 64 << 10
_DOCKER_ID = re.compile(r"/(?:docker|containerd|libpod|crio|overlay-containers)[^ \n]*?[/-]([0-9a-f]{64})")
_SIF_MAGIC, _SIF_ID = b"SIF_MAGIC\0", slice(48, 64)  # launch script 32 bytes, magic 10, version 3, architecture 3


def describe_container(environ: Mapping[str, str], pids: Iterable[int] = (), root: Path = Path("/")) -> dict[str, Any]:
    """Empty where nothing tells of a container. The files are those of a rank's root where one still lives."""
    told: dict[str, Any] = {}
    named = {name: value for name, value in sorted(environ.items()) if _NAMES.fullmatch(name)}
    if named:
        told["environment"] = named
    for folder in [*(root / "proc" / str(pid) / "root" for pid in pids), root]:
        found = _marks(folder)
        if found:
            told |= found
            break
    ids = _docker_id(root / "proc" / "self" / "mountinfo")
    if ids and told:
        told["container_id"] = ids
    image = environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or ""
    if image.startswith("/"):
        told["image"] = describe_image(Path(image))
    return told


def _marks(root: Path) -> dict[str, Any]:
    """What the run-times leave in a container: docker, podman, apptainer."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError):
        if (root / ".dockerenv").exists():
            found["runtime"] = "docker"
        if text := _read(root / "run" / ".containerenv"):
            found |= {"runtime": "podman", "containerenv": text}
        if text := _read(root / ".singularity.d" / "labels.json"):
            found["runtime"] = "apptainer"
            with contextlib.suppress(ValueError, RecursionError):
                found["labels"] = json.loads(text)
    if found and (release := _read(root / "etc" / "os-release")):
        found["os"] = next((line[13:-1] for line in release.splitlines() if line.startswith("PRETTY_NAME=")), "")
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _docker_id(mountinfo: Path) -> str:
    match = _DOCKER_ID.search(_read(mountinfo))
    return match[1] if match else ""


def describe_image(path: Path) -> dict[str, Any]:
    """Size, time and the id that apptainer gave the image when it was built; hashing gigabytes would take too long."""
    try:
        status = path.stat()
        with path.open("rb") as stream:
            head = stream.read(64)
    except (OSError, ValueError) as exc:
        return {"path": str(path), "error": str(exc)}
    told: dict[str, Any] = {"path": str(path), "bytes": status.st_size, "modified": status.st_mtime}
    if head[32:42] == _SIF_MAGIC and len(head) == 64:
        told["sif_id"] = str(uuid.UUID(bytes=head[_SIF_ID]))
    return told
