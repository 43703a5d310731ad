"""The frozen agent: complete, standard library only, the same each time, and able to start anywhere."""

from __future__ import annotations

import importlib.util
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from slurmtrain.errors import SlurmtrainError
from slurmtrain.render import agent_zip
from slurmtrain.render.agent_zip import build_agent_zip, find_agent_modules

PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.1[0-9].*/bin/python")) or [Path(sys.executable)]
USAGE = "usage: agent.pyz attempt RUN_DIR"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(build_agent_zip())
    return path


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_it_starts_under_every_python_from_any_directory(python: Path, archive: Path, tmp_path: Path) -> None:
    trap = tmp_path / "slurmtrain.py"  # a file of that name in the working directory must not be taken
    trap.write_text("raise SystemExit('the wrong module')")
    env = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nowhere", "PATH": os.defpath}
    result = subprocess.run([python, "-I", archive], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert USAGE in result.stdout
    assert result.returncode == 2


def test_every_module_in_it_can_be_imported_with_nothing_but_the_standard_library(
    archive: Path, tmp_path: Path
) -> None:
    """``-S`` leaves site-packages out, so that a third-party import anywhere in the archive fails."""
    sources = [n for n in zipfile.ZipFile(archive).namelist() if n.endswith(".py")]
    names = [n.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for n in sources]
    wanted = [name for name in names if name.startswith("slurmtrain")]
    code = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        f"for name in {wanted!r}: __import__(name)\n"
        "print(*sorted(n for n, m in sys.modules.items() if 'site-packages' in (getattr(m, '__file__', '') or '')))\n"
        "import slurmtrain; print(slurmtrain.__file__)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    third_party, where = result.stdout.split("\n")[:2]
    assert third_party == ""
    assert where.startswith(str(archive))
    assert len(wanted) > 20


def test_the_same_sources_make_the_same_bytes() -> None:
    assert build_agent_zip() == build_agent_zip()


def test_its_bytecode_is_that_of_its_sources() -> None:
    archive = zipfile.ZipFile(io.BytesIO(build_agent_zip()))
    sources = [n for n in archive.namelist() if n.endswith(".py") and n != "__main__.py"]
    for name in sources:
        bytecode = archive.read(f"{name}c")
        assert bytecode[:4] == importlib.util.MAGIC_NUMBER
        assert bytecode[8:16] == importlib.util.source_hash(archive.read(name))


def test_it_holds_what_the_agent_needs_and_not_the_rest() -> None:
    names = zipfile.ZipFile(io.BytesIO(build_agent_zip())).namelist()
    assert {"__main__.py", "slurmtrain/agent/main.py", "slurmtrain/core/spec.py", "slurmtrain/errors.py"} <= set(names)
    assert not [name for name in names if name.startswith(("slurmtrain/cli", "slurmtrain/render", "slurmtrain/config"))]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little package in the place of ours."""
    package = tmp_path / "slurmtrain"
    (package / "render").mkdir(parents=True)
    (package / "sub").mkdir()
    for path in (package / "__init__.py", package / "render" / "__init__.py", package / "sub" / "__init__.py"):
        path.write_text("")
    shutil.copy(agent_zip.__file__, package / "render" / "agent_zip.py")
    monkeypatch.setattr(agent_zip, "__file__", str(package / "render" / "agent_zip.py"))
    return package


def test_imports_are_followed_wherever_they_stand(tree: Path) -> None:
    (tree / "entry.py").write_text(
        "from typing import TYPE_CHECKING\nfrom slurmtrain import late_name\nfrom . import sibling\n"
        "def f():\n    from slurmtrain.sub.inner import x\n"
        "if TYPE_CHECKING:\n    import msgspec\n    from slurmtrain import never\n"
        "else:\n    import slurmtrain.other\n"
    )
    for name in ("late_name", "sibling", "never", "other"):
        (tree / f"{name}.py").write_text("import json")
    (tree / "sub" / "inner.py").write_text("from ..deep import y")
    (tree / "deep.py").write_text("")
    assert sorted(find_agent_modules("slurmtrain.entry")) == [
        "slurmtrain/__init__.py", "slurmtrain/deep.py", "slurmtrain/entry.py", "slurmtrain/late_name.py",
        "slurmtrain/other.py", "slurmtrain/sibling.py", "slurmtrain/sub/__init__.py", "slurmtrain/sub/inner.py",
    ]  # fmt: skip


def test_a_third_party_import_is_refused_at_the_freezing(tree: Path) -> None:
    (tree / "entry.py").write_text("def f():\n    import yaml\n")
    with pytest.raises(SlurmtrainError, match=r"slurmtrain\.entry imports yaml"):
        find_agent_modules("slurmtrain.entry")
