"""The house rules, checked: layers, sizes, types of results, documents that keep up with the code."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmtrain import errors
from slurmtrain.cli import main
from slurmtrain.config.schema import all_keys

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "slurmtrain").rglob("*.py"))
MAX_FILE, MAX_FUNCTION, MEDIAN_FUNCTION = 350, 40, 10
LONGER = {"slurmtrain/training.py": 720}  # one file by contract: it is copied beside training code


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body, the docstring and the signature left out."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return (node.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_imports_only_point_down_and_the_core_is_pure() -> None:
    lint = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([lint], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout


def test_no_file_is_too_long() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in SOURCES}
    assert {name: size for name, size in sizes.items() if size > LONGER.get(name, MAX_FILE)} == {}


def test_no_function_is_too_long_and_most_are_short() -> None:
    sizes = {f"{p.relative_to(ROOT)}:{f.name}": length(f) for p in SOURCES for f in functions(p)}
    assert {name: size for name, size in sizes.items() if size > MAX_FUNCTION} == {}
    assert statistics.median(sizes.values()) <= MEDIAN_FUNCTION


def test_every_function_says_what_it_returns() -> None:
    silent = [f"{p.relative_to(ROOT)}:{f.lineno}" for p in SOURCES for f in functions(p) if f.returns is None]
    assert silent == []


def test_every_module_says_what_it_is_for() -> None:
    assert [str(p) for p in SOURCES if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))] == []


def test_no_module_is_a_drawer() -> None:
    assert [p for p in SOURCES if p.stem in {"utils", "util", "helpers", "common", "misc"}] == []


def test_no_command_goes_through_a_shell() -> None:
    assert [
        str(p)
        for p in SOURCES
        if re.search(r"shell\s*=\s*True|os\.system\(|os\.popen\(", p.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize("key", all_keys())
def test_every_key_of_the_job_file_is_documented(key: str) -> None:
    group, _, name = key.rpartition(".")
    text = (ROOT / "docs" / "spec.md").read_text(encoding="utf-8")
    section = (
        text.partition(f"### `{group}`")[2].partition("\n#")[0]
        if group
        else text.partition("## Keys")[2].partition("###")[0]
    )
    assert f"`{name}`" in section


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(n) for n in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    raised = {
        c.exit_code for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.SlurmtrainError)
    }
    ours = {main.EXIT_USAGE, main.EXIT_INTERNAL, main.EXIT_INTERRUPTED, main.EXIT_PIPE}
    assert documented == raised | ours | {0, 124}


def test_every_relative_link_in_the_documents_leads_somewhere() -> None:
    dead = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not (path.parent / target).exists():
                dead.append(f"{path.relative_to(ROOT)}: {target}")
    assert dead == []
