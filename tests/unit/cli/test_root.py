"""The command line's root: what it lists, what it loads, and how every ending reaches a person."""

# ruff: noqa: E501 - command lines
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("jinja2", "paramiko", "rich", "msgspec", "yaml", "watchdog", "pluggy")


def run(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **env}
    return subprocess.run(
        [sys.executable, "-m", "slurmtrain", *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd or "/",
        env=environ,
    )


@pytest.mark.parametrize("args", [["--help"], ["--version"], [], ["--nonsense"]])
def test_the_root_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from slurmtrain.cli.main import main\n"
        "try:\n"
        f"    main({args!r})\n"
        "except SystemExit: pass\n"
        f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert result.stderr.splitlines()[-1] == "LOADED"


def test_help_of_submit_imports_no_engine() -> None:
    code = (
        "import sys\nfrom slurmtrain.cli.main import main\n"
        "try:\n    main(['submit', '--help'])\nexcept SystemExit: pass\n"
        "print('LOADED', *[n for n in ('jinja2', 'yaml', 'paramiko', 'rich') if n in sys.modules], file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert result.stderr.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    "args",
    [["status"], ["explain", "x"], ["wait", "x"], ["logs", "x"], ["stop", "x"], ["release", "x"]],
    ids=" ".join,
)
def test_what_people_ask_again_and_again_loads_no_engine(args: list[str], tmp_path: Path) -> None:
    unused = ("jinja2", "yaml", "paramiko", "rich", "watchdog", "pluggy", "hyperscan", "pyslurm", "importlib.metadata")
    code = (
        "import sys\nfrom slurmtrain.cli.main import main\n"
        f"try:\n    main({args!r})\nexcept SystemExit: pass\n"
        f"print('LOADED', *[name for name in {unused!r} if name in sys.modules], file=sys.stderr)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SLURMTRAIN_STORE": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, cwd=tmp_path)
    assert result.stderr.splitlines()[-1] == "LOADED"


def listed() -> list[str]:
    return [name for names in groups().values() for name in names]


def groups() -> dict[str, list[str]]:
    """What ``--help`` lists, by task."""
    parts = re.findall(r"^(\w[\w ]*):\n((?:  [a-z]+  .*\n)+)", run("--help").stdout, re.MULTILINE)
    return {title: [line.split()[0] for line in lines.splitlines()] for title, lines in parts}


def test_the_commands_are_listed_by_what_a_person_wants() -> None:
    found = groups()
    assert list(found) == ["Start", "Follow", "Understand", "Intervene", "Keep"]
    assert "submit" in found["Start"]
    assert {"status", "logs"} <= set(found["Follow"])
    assert {"explain", "checkpoints"} <= set(found["Understand"])
    assert "stop" in found["Intervene"]
    assert "prune" in found["Keep"]


def test_every_command_is_in_the_table_of_the_docs() -> None:
    table = (ROOT / "docs" / "commands.md").read_text("utf-8").partition("\n## ")[0]
    assert [name for name in listed() if f"[`{name}`](" not in table] == []


def test_every_command_that_is_listed_has_a_help_text_with_an_example() -> None:
    assert {"submit", "render", "status"} <= set(listed())
    for name in listed():
        result = run(name, "--help")
        assert result.returncode == 0, result.stderr
        usage, _, after = result.stdout.partition("Options:")
        assert f"Usage: slurmtrain {name}" in usage
        if "COMMAND" in usage:  # a group: its commands show examples
            continue
        assert f"slurmtrain {name}" in after.partition("Example")[2], f"{name} --help shows no example"


def test_commands_that_do_not_exist_are_not_listed() -> None:
    for name in listed():
        assert (ROOT / "slurmtrain" / "cli" / f"{name}.py").is_file()


def test_version() -> None:
    from slurmtrain import __version__

    assert run("--version").stdout.split()[-1] == __version__


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["submt"], 2, "there is no command 'submt'; did you mean 'submit'?"),
        (["zzz\x1b[31m"], 2, "there is no command"),
        (["--nonsense"], 2, "no such option"),
        (["submit"], 2, "nothing to run: name a job file, or write the command after --"),
        (["submit", "--"], 2, "nothing follows --"),
        (["submit", "--nodess", "3", "--", "x"], 2, "no such option"),
        (["submit", "none.yaml"], 3, "there is no file 'none.yaml'"),
        (["submit", "-N", "0", "--", "x"], 5, "option --nodes: resources.nodes: must be at least 1, got 0"),
        (["submit", "-J", "a\nb", "--", "x"], 5, "control character U+000A"),
        (["submit", "--store", "", "--", "x"], 2, "--store needs a directory"),
        (["render", "--path", "/no/where", "--", "x"], 3, "there is no folder '/no/where'"),
        (["submit", "a.yaml", "b.yaml"], 2, "unexpected extra argument"),
        (["submit", "python3", "train.py"], 2, "the command to run is written after --"),
        (["wait", "x", "--timeout", "1h"], 2, "'1h' is no number"),
        (["rules"], 2, "`slurmtrain rules` needs one more word"),
    ],
)
def test_bad_input_is_one_sentence_and_the_documented_exit_code(args: list[str], code: int, said: str) -> None:
    result = run(*args)
    assert result.returncode == code
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("slurmtrain: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "\x1b" not in result.stderr


def test_a_reader_that_was_never_there_has_its_exit_code() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "slurmtrain", "render", "--", "bash", "-c", "x"],
            stdout=nowhere, stderr=subprocess.PIPE, text=True, check=False, timeout=60, cwd="/",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        f"{sys.executable} -m slurmtrain render -- bash -c x | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd="/",
    )  # fmt: skip
    out, err = process.communicate(timeout=60)
    assert out.strip() in {"0", "141"}
    assert "Traceback" not in err
    assert "Exception ignored" not in err


def test_a_full_disk_behind_stdout_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "slurmtrain", "render", "--", "bash", "-c", "x"], stdout=full, stderr=subprocess.PIPE, text=True,
            timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd="/",
        )  # fmt: skip
    assert result.returncode == 1
    assert "slurmtrain: cannot write the output: No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_of_ours_is_a_sentence_and_its_traceback_a_file(tmp_path: Path) -> None:
    code = (
        "import slurmtrain.cli.build as b\n"
        "def broken(*a, **k): raise RuntimeError('bo\\x1bom')\n"
        "b.build_run = broken\n"
        "from slurmtrain.cli.main import main\n"
        "main(['render', '--', 'x'])"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert result.returncode == 70
    assert "an error in slurmtrain itself (RuntimeError: bo?om); please report it with" in result.stderr
    assert "Traceback" not in result.stderr
    [saved] = tmp_path.glob("slurmtrain-*.traceback")
    assert "RuntimeError" in saved.read_text()


def test_interrupted() -> None:
    code = (
        "import slurmtrain.cli.build as b\n"
        "def broken(*a, **k): raise KeyboardInterrupt\n"
        "b.build_run = broken\n"
        "from slurmtrain.cli.main import main\n"
        "main(['render', '--', 'x'])"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert (result.returncode, result.stderr.strip()) == (130, "slurmtrain: interrupted")


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m slurmtrain render -- x"
    result = subprocess.run(
        ["/bin/bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert result.returncode == 3
    assert "the working directory does not exist any more" in result.stderr
