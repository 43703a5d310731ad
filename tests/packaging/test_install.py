"""Installed from a wheel, from the sdist and from the checkout: the same commands, templates and rules, from anywhere.

Builds and installs for real, into fresh environments; packages of other people are lent by this environment, so nothing
is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = (
    "slurmtrain",
    "templates",
    "plugins",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "docs",
    "tests",
    "docker",
)


def call(*argv: str | Path, cwd: Path | None = None) -> str:
    """Run to the end; the environment names nothing of this checkout."""
    env = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    result = subprocess.run([str(a) for a in argv], cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fresh clone holds, without caches and what is not committed to it by name."""
    copy = tmp_path_factory.mktemp("clone")
    for name in KEPT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        elif source.exists():
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture(scope="session")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist, a wheel built from the tree, and one built from the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", out, tree)
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out / "tree", tree)
    [sdist] = out.glob("*.tar.gz")
    (out / "unpacked").mkdir()
    call("tar", "-xzf", sdist, "-C", out / "unpacked")
    [unpacked] = (out / "unpacked").iterdir()
    call(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out / "sdist", unpacked)
    [wheel], [again] = (out / "tree").glob("*.whl"), (out / "sdist").glob("*.whl")
    return {"sdist": sdist, "wheel": wheel, "sdist-wheel": again}


def lend_packages(folder: Path) -> None:
    """Make this environment's packages importable in that one, ours left out where it is installed here."""
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


@pytest.fixture(scope="session", params=["wheel", "sdist-wheel", "editable"])
def installed(
    request: pytest.FixtureRequest, built: dict[str, Path], tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "venv"
    venv.create(folder, with_pip=True, symlinks=True)
    lend_packages(folder)  # hatchling too, which an editable install needs
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    what = ["-e", tree] if request.param == "editable" else [built[request.param]]
    call(folder / "bin" / "python", "-m", "pip", "install", *options, *what)
    return folder


def test_a_wheel_is_the_same_whether_built_from_the_tree_or_from_the_sdist(built: dict[str, Path]) -> None:
    names = {kind: sorted(zipfile.ZipFile(built[kind]).namelist()) for kind in ("wheel", "sdist-wheel")}
    assert names["wheel"] == names["sdist-wheel"]


def test_everything_that_ships_is_in_the_wheel(built: dict[str, Path], tree: Path) -> None:
    names = set(zipfile.ZipFile(built["wheel"]).namelist())
    for folder in ("templates", "plugins"):
        files = [p.relative_to(tree).as_posix() for p in (tree / folder).rglob("*") if p.is_file()]
        assert len(files) > 3
        assert {f"slurmtrain/_bundled/{name}" for name in files} <= names
    modules = {p.relative_to(tree).as_posix() for p in (tree / "slurmtrain").rglob("*.py")}
    assert modules <= names
    assert "slurmtrain/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "docker", "docs"))]


def test_the_sdist_can_be_tested_by_itself(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "templates/train.sbatch.j2"} <= names
    assert any(name.startswith("tests/unit/") for name in names)
    assert any(name.startswith("docker/") for name in names)


class TestInstalled:
    def test_it_is_the_installed_one_that_runs(self, installed: Path, tmp_path: Path) -> None:
        where = call(installed / "bin" / "python", "-c", "import slurmtrain; print(slurmtrain.__file__)", cwd=tmp_path)
        assert str(ROOT) + "/" not in where

    def test_the_command_knows_its_version(self, installed: Path, tmp_path: Path) -> None:
        from slurmtrain import __version__

        assert call(installed / "bin" / "slurmtrain", "--version", cwd=tmp_path).split()[-1] == __version__
        assert (
            call(installed / "bin" / "python", "-m", "slurmtrain", "--version", cwd=tmp_path).split()[-1] == __version__
        )

    def test_render_works_from_another_directory(self, installed: Path, tmp_path: Path) -> None:
        (tmp_path / "job.yaml").write_text("command: [bash, -c, exit]\nresources: {nodes: 2, time_limit: 1:00:00}\n")
        script = call(installed / "bin" / "slurmtrain", "render", "job.yaml", cwd=tmp_path)
        assert "#SBATCH --nodes=2\n" in script
        assert f"ST_AGENT_PYTHON={installed}/bin/python" in script

    def test_a_whole_run_can_be_made_and_its_agent_starts(self, installed: Path, tmp_path: Path) -> None:
        call(
            installed / "bin" / "slurmtrain",
            "render",
            "--out",
            tmp_path / "run",
            "--",
            "bash",
            "-c",
            "exit",
            cwd=tmp_path,
        )
        assert (tmp_path / "run" / "rules.json").stat().st_size > 1000
        agent = subprocess.run(
            [sys.executable, "-I", tmp_path / "run" / "agent.pyz"], capture_output=True, text=True, timeout=60, cwd="/"
        )
        assert "usage: agent.pyz" in agent.stdout

    def test_every_bundled_file_is_found(self, installed: Path, tree: Path, tmp_path: Path) -> None:
        code = (
            "from slurmtrain.resources import bundled\n"
            "for kind in ('templates', 'plugins'):\n"
            "    for path in sorted(bundled(kind).rglob('*')):\n"
            "        if path.is_file(): print(kind, path.relative_to(bundled(kind)).as_posix())"
        )
        lines = call(installed / "bin" / "python", "-c", code, cwd=tmp_path).splitlines()
        found = [line for line in lines if "/__pycache__/" not in line]  # pip compiles the collectors, too
        wanted = [
            f"{kind} {p.relative_to(tree / kind).as_posix()}"
            for kind in ("templates", "plugins")
            for p in sorted((tree / kind).rglob("*"))
            if p.is_file()
        ]
        assert sorted(found) == sorted(wanted)

    def test_help_lists_the_same_commands_as_the_checkout(self, installed: Path, tmp_path: Path) -> None:
        listed = call(installed / "bin" / "slurmtrain", "--help", cwd=tmp_path)
        assert all(f"  {name}" in listed for name in ("submit", "render", "status", "explain", "watch"))


def test_what_the_package_needs_is_what_it_imports() -> None:
    """Every third-party import of the package is a dependency, an extra, or imported behind a check."""
    import ast
    import re

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    names = {re.split(r"[<>=;\[ ]", item)[0].lower() for item in declared}
    module_of = {"pyyaml": "yaml", "clustershell": "ClusterShell"}
    modules = {module_of.get(name, name.replace("-", "_")) for name in names}
    imported = set()
    for path in (ROOT / "slurmtrain").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").partition(".")[0])
    of_trainings = {
        "lightning",
        "pytorch_lightning",
        "transformers",
        "jax",
    }  # slurmtrain.training serves whichever is there
    assert imported - sys.stdlib_module_names - {"slurmtrain"} - of_trainings <= modules
