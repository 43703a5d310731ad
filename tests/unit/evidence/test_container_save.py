"""Crashed containers: what the run-times are told; stand-ins for enroot and docker write it down."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.core.spec import ContainerOptions, Spec, spec_to_dict
from slurmtrain.evidence.container_save import Container, find_container, find_enroot_name
from slurmtrain.evidence.manifest import Taking

Collect = Callable[..., tuple[Taking, Path]]
ENROOT = """#!/bin/sh
echo "$*" >>"$CALLS"
case $1 in
  list) printf 'pyxis_77_slurmtrain-77-0-0\\nother\\n' ;;
  export) head -c "${IMAGE_SIZE:-3000000}" /dev/zero >"$4" ;;
esac
"""
DOCKER = """#!/bin/sh
echo "$*" >>"$CALLS"
case "$1 $2" in
  "container inspect") [ "$6" = train ] && echo 4000000 ;;
  "save --output") echo image >"$3" ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("enroot", ENROOT), ("docker", DOCKER)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def write_plan(tmp_path: Path, **values: Any) -> Path:
    run = tmp_path / "store" / "runs" / "r"
    options = values.pop("container", ContainerOptions(save=True))
    spec = Spec(**{"command": ("python", "train.py"), **values}, container=options)
    (run / "plan.json").write_text(json.dumps({"spec": spec_to_dict(spec), "run_id": "r"}))
    return run / "attempts/000/launches/0/images"


PYXIS: dict[str, Any] = {"srun_options": ("--container-image=nvcr.io#nvidia/pytorch:24.05-py3",)}
ENVIRON = {"SLURM_JOB_ID": "77"}


def test_a_container_of_pyxis_is_exported_and_removed(collect: Collect, calls: Path, tmp_path: Path) -> None:
    images = write_plan(tmp_path, **PYXIS)
    taking, _ = collect("container-image", environ=ENVIRON)
    target = images / "n1.sqsh"
    assert taking.notes == (f"the container is saved: {target} (2 MiB)",)
    assert target.stat().st_mode & 0o777 == 0o600
    name = "pyxis_77_slurmtrain-77-0-0"
    assert calls.read_text().splitlines() == [
        "list",
        f"export --force --output {target} {name}",
        f"remove --force {name}",
    ]


def test_on_the_other_nodes_it_is_only_removed(collect: Collect, calls: Path, tmp_path: Path) -> None:
    images = write_plan(tmp_path, **PYXIS)
    collect("container-image", environ=ENVIRON, batch_host=False)
    assert calls.read_text().splitlines() == ["list", "remove --force pyxis_77_slurmtrain-77-0-0"]
    assert list(images.iterdir()) == []


def test_an_image_that_is_too_large_is_not_kept(
    collect: Collect, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = write_plan(tmp_path, **PYXIS, container=ContainerOptions(save=True, size_limit="1M"))
    taking, _ = collect("container-image", environ=ENVIRON)
    assert "could not be saved" in taking.notes[0]
    assert list(images.iterdir()) == []


def test_a_container_of_docker_is_committed_and_written_to_a_file(
    collect: Collect, calls: Path, tmp_path: Path
) -> None:
    command = ("docker", "run", "--name", "train", "img", "python", "train.py")
    images = write_plan(tmp_path, command=command)
    taking, _ = collect("container-image")
    assert (images / "n1.tar").read_text() == "image\n"
    assert taking.notes == (f"the container is saved: {images / 'n1.tar'} (0 MiB)",)
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["container", "commit", "save", "rmi"]


def test_the_overlay_of_apptainer_is_copied(collect: Collect, tmp_path: Path) -> None:
    (tmp_path / "over.img").write_bytes(b"changed")
    images = write_plan(tmp_path, command=("apptainer", "exec", "--overlay", "over.img", "torch.sif", "python"))
    collect("container-image")
    assert (images / "over.img").read_bytes() == b"changed"


def test_nothing_is_saved_unless_the_job_file_asks(collect: Collect, calls: Path, tmp_path: Path) -> None:
    images = write_plan(tmp_path, **PYXIS, container=ContainerOptions())
    taking, _ = collect("container-image", environ=ENVIRON)
    assert (taking.notes, images.exists(), calls.exists()) == ((), False, False)


@pytest.mark.parametrize(
    ("command", "options", "environ", "found"),
    [
        (("python", "x"), ("--container-image=a", "--container-name=mine:exec"), {}, Container("enroot", "mine")),
        (("apptainer", "run", "--overlay=o.img:ro", "a.sif"), (), {}, "no writable overlay"),
        (("python",), (), {"APPTAINER_CONTAINER": "/a.sif"}, "no writable overlay"),
        (("podman", "run", "--name=x", "img"), (), {}, Container("engine", "x", "podman")),
        (("docker", "run", "--rm", "--name", "x", "img"), (), {}, "leave --rm out"),
        (("docker", "run", "img"), (), {}, "give the container a name"),
        (("python", "train.py"), (), {}, ""),
    ],
)
def test_what_can_be_saved(command: Any, options: Any, environ: Any, found: Container | str, tmp_path: Path) -> None:
    container, why = find_container(command, options, environ, tmp_path, "slurmtrain-1-0-0")
    if isinstance(found, Container):
        assert container == found
    else:
        assert container is None
        assert (found in why) if found else why == ""


def test_names_of_enroot_of_both_scopes() -> None:
    assert find_enroot_name("pyxis_x\n", "x", "7") == "pyxis_x"
    assert find_enroot_name("pyxis_7_x\npyxis_x\n", "x", "7") == "pyxis_7_x"
    assert find_enroot_name("pyxis_8_x\n", "x", "7") == ""
