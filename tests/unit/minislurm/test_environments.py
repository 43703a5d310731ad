"""Environments of live tests: the environment itself is asked what is in it, never a record of ours."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from environments import CannotInstall, install, lacks

WANTED = ["keras==3.15.1", "setuptools>=78"]


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    venv.create(tmp_path / "venv", symlinks=True)
    return tmp_path / "venv"


def _put(environment: Path, name: str, version: str, *, whole: bool = True) -> None:
    (site,) = environment.glob("lib/python3*/site-packages")
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if whole:
        (info / "RECORD").write_text(f"{info.name}/METADATA,,\n")


@pytest.mark.one_python
def test_what_is_not_there_whole_in_that_version_is_lacking(environment: Path) -> None:
    assert lacks(environment, WANTED) == WANTED
    _put(environment, "setuptools", "80.1")
    _put(environment, "keras", "3.14.0")
    assert lacks(environment, WANTED) == ["keras==3.15.1"]


@pytest.mark.one_python
def test_a_local_build_of_the_version_will_do_but_half_a_package_will_not(environment: Path) -> None:
    _put(environment, "torch", "2.13.0+cpu")
    _put(environment, "keras", "3.15.1", whole=False)
    assert lacks(environment, ["torch==2.13.0", *WANTED]) == WANTED


@pytest.mark.one_python
def test_a_package_of_the_callers_own_path_counts_for_nothing(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "elsewhere" / "keras-3.15.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.15.1\n")
    (info / "RECORD").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(info.parent))
    assert lacks(environment, ["keras==3.15.1"]) == ["keras==3.15.1"]


@pytest.mark.one_python
def test_an_installation_that_fails_says_why(environment: Path) -> None:
    with pytest.raises(CannotInstall, match="pip"):  # this environment has none
        install(environment, ["keras==3.15.1"])
