"""What is quoted arrives as it was: at sbatch's own parser, at bash, in Slurm's file names."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_support import sbatch_arguments

from slurmtrain.core.spec import Resources, Spec
from slurmtrain.render.directives import build_directives
from slurmtrain.render.quoting import escape_file_pattern, quote_argv, quote_directive

visible = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=40)
arguments = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60)

HOSTILE = ["$(rm -rf x)", "`id`", "a'b", 'a"b', "a\\", "a #b", "--wrap", "-x", "%j", "ü 🚀", " lead", "x\ty", "hetjob"]


@given(visible)
def test_a_directive_reaches_sbatch_as_one_argument(value: str) -> None:
    assert sbatch_arguments(f"#SBATCH --job-name={quote_directive(value)}") == [f"--job-name={value}"]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_directives(value: str) -> None:
    assert sbatch_arguments(f"#SBATCH --job-name={quote_directive(value)}") == [f"--job-name={value}"]


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\0b"])
def test_a_line_break_never_becomes_a_directive(value: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        quote_directive(value)


@settings(max_examples=60, deadline=None)
@given(st.lists(arguments, min_size=1, max_size=5))
def test_bash_gives_back_every_argument(values: list[str]) -> None:
    script = f"printf '%s\\0' {quote_argv(values)}"
    out = subprocess.run(["/bin/bash"], input=script.encode(), capture_output=True, timeout=30, check=True).stdout
    assert out.decode().split("\0")[:-1] == values


def slurm_file_name(pattern: str, job_id: int) -> str:
    """_create_batch_fname() of src/slurmd/common/fname.c for the patterns that matter here."""
    name, at = "", 0
    while at < len(pattern):
        if pattern[at] == "%" and pattern[at + 1] == "%":
            name, at = name + "%", at + 2
        elif pattern[at] == "%" and pattern[at + 1] == "j":
            name, at = name + str(job_id), at + 2
        elif pattern[at] == "%":
            raise AssertionError(f"a pattern that was not meant: {pattern[at : at + 2]}")
        else:
            name, at = name + pattern[at], at + 1
    return name


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="\\"), max_size=30))
def test_the_log_lands_in_the_run_directory_whatever_its_name(name: str) -> None:
    spec = Spec(command=("x",), workdir="/")
    line = next(line for line in build_directives(spec, f"/store/{name}") if line.startswith("--output"))
    [argument] = sbatch_arguments(f"#SBATCH {line}")
    assert slurm_file_name(argument.removeprefix("--output="), 7) == f"/store/{name}/logs/train-7.log"


def test_a_backslash_in_a_log_path_is_refused_because_slurm_would_drop_all_patterns() -> None:
    with pytest.raises(ValueError, match="backslash"):
        escape_file_pattern("/a\\b")


def test_torchrun_gets_one_task_a_node_with_the_cpus_of_all_its_ranks() -> None:
    asked = Resources(nodes=3, tasks_per_node=4, cpus_per_task=7)
    lines = build_directives(Spec(command=("t.py",), launcher="torchrun", resources=asked), "/r")
    assert {"--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=28"} <= set(lines)
    lines = build_directives(Spec(command=("t.py",), resources=asked), "/r")
    assert {"--nodes=3", "--ntasks-per-node=4", "--cpus-per-task=7"} <= set(lines)


@pytest.mark.parametrize(
    ("limit", "lead"), [("1:00:00", 300), ("10", 120), ("1", 12), (None, 300), ("UNLIMITED", 300), ("0", 300)]
)
def test_the_warning_comes_a_fifth_of_the_limit_before_its_end_and_at_most_five_minutes(
    limit: str | None, lead: int
) -> None:
    spec = Spec(command=("x",), resources=Resources(time_limit=limit))
    assert f"--signal=B:USR2@{lead}" in build_directives(spec, "/r")


def test_further_options_keep_their_value_whole() -> None:
    spec = Spec(command=("x",), resources=Resources(sbatch_options=("--comment=a b#c", "--nice", "--licenses=m:1")))
    lines = build_directives(spec, "/r")[-3:]
    assert [sbatch_arguments(f"#SBATCH {line}") for line in lines] == [
        ["--comment=a b#c"],
        ["--nice"],
        ["--licenses=m:1"],
    ]
