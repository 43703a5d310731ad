"""What README and docs show works: links lead somewhere, commands are run, files are what they claim to be."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from blocks import HOW, REPO, Block, files_of, pages, read_blocks

from slurmtrain.config.problems import Problems
from slurmtrain.config.schema import all_keys
from slurmtrain.config.settings import read_settings_file

BLOCKS = [block for page in pages() for block in read_blocks(page)]
COMMANDS = [block for block in BLOCKS if block.shows_commands]


def _name(block: Block) -> str:
    return f"{block.page.relative_to(REPO)}:{block.line}"


def _run(command: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A command line as a person types it, with ``slurmtrain`` of this checkout first in the PATH."""
    prelude = (
        f'slurmtrain() {{ PYTHONPATH={shlex.quote(str(REPO))} {shlex.quote(sys.executable)} -m slurmtrain "$@"; }}'
    )
    return subprocess.run(
        ["bash", "-c", f"{prelude}\n{command}"],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_there_are_commands_to_run() -> None:
    assert {block.how for block in COMMANDS} >= {"cluster", "help"}


@pytest.mark.parametrize("block", COMMANDS, ids=_name)
def test_each_block_says_how_it_is_run(block: Block) -> None:
    assert block.how in HOW, f"{_name(block)}: put `<!-- run: {' | '.join(HOW)} -->` before it"
    if block.how == "not":
        assert block.mark is not None
        assert "," in block.mark[1], f"{_name(block)}: say why it is not run: `<!-- run: not, REASON -->`"
    assert block.commands, f"{_name(block)}: a command line begins with `$ `"


@pytest.mark.parametrize("block", [b for b in COMMANDS if b.how == "help"], ids=_name)
def test_the_command_exists(block: Block) -> None:
    for command, _ in block.commands:
        done = _run(f"{command} --help", REPO)
        assert done.returncode == 0, f"{command} --help: {done.stderr}"
        assert "usage" in done.stdout.lower()


@pytest.mark.parametrize("block", [b for b in COMMANDS if b.how == "here"], ids=_name)
def test_the_command_works(block: Block, tmp_path: Path) -> None:
    for name, text in files_of(block.page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    env = {"HOME": str(tmp_path / "home"), "SLURMTRAIN_STORE": str(tmp_path / "store")}
    for command, code in block.commands:
        done = _run(command, tmp_path, env)
        assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("block", [b for b in COMMANDS if b.how == "cluster"], ids=_name)
def test_the_options_of_cluster_commands_exist(block: Block) -> None:
    """The live tests run these commands; here only what their own ``--help`` tells is compared."""
    for command, _ in block.commands:
        words = shlex.split(command, comments=True)
        if words[:1] != ["slurmtrain"]:
            continue
        own = words[: words.index("--")] if "--" in words else words
        done = _run(f"slurmtrain {own[1]} --help", REPO)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        for word in own[2:]:
            if word.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", done.stdout), (command, word)


@pytest.mark.parametrize("page", [page for page in pages() if "job.yaml" in files_of(page)], ids=lambda p: p.name)
def test_the_job_file_is_accepted(page: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(files_of(page)["job.yaml"], encoding="utf-8")
    done = _run("slurmtrain render job.yaml", tmp_path, {"SLURMTRAIN_STORE": str(tmp_path / "store")})
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --requeue" in done.stdout


def test_the_settings_file_is_accepted(tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".config" / "slurmtrain" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(files_of(REPO / "docs" / "quickstart.md")["config.toml"], encoding="utf-8")
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": "", "SLURMTRAIN_STORE": ""}
    done = _run("slurmtrain render -- true", tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert "RUN_DIR=/scratch/me/slurmtrain/runs/" in done.stdout


def test_the_settings_of_a_site_are_accepted(tmp_path: Path) -> None:
    site = tmp_path / "config.toml"
    site.write_text(files_of(REPO / "docs" / "administrators.md")["site.toml"], encoding="utf-8")
    problems = Problems()
    read = read_settings_file(site, problems, may_lock=True)
    problems.raise_if_any("the site's settings")
    assert set(read.locked) <= set(all_keys())
    assert {*read.defaults, *read.partitions["gpu"], *read.prune} >= {"retry.deadline", "resources.gres", "older_than"}


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=_name)
def test_python_code_compiles(block: Block) -> None:
    compile(block.text, _name(block), "exec")


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(REPO)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name}: {target} leads nowhere"
        if anchor:
            assert anchor in _anchors(found), f"{page.name}: {target}: no such heading"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_example_training_runs_and_resumes(tmp_path: Path) -> None:
    """The program of the docs, by hand: asked to stop by a file it saves, and goes on from there."""
    (tmp_path / "train.py").write_text(files_of(REPO / "docs" / "training-code.md")["train.py"], encoding="utf-8")
    stop = tmp_path / "please"
    stop.touch()
    env = {"SLURMTRAIN_STOP_FILE": str(stop)}
    done = _run(f"{sys.executable} train.py --steps 30", tmp_path, env)
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-000001.json"]
    env = {"SLURMTRAIN_RESUME_FROM": str(tmp_path / "checkpoints" / "step-000001.json")}
    done = _run(f"{sys.executable} train.py --steps 30", tmp_path, env)
    assert "starts at step 1" in done.stdout
    assert "training finished" in done.stdout
