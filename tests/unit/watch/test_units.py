"""Units for systemd, cron and scrontab: read by the tools themselves where they are here, and run through sh."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slurmtrain.errors import NotFoundError, UsageError
from slurmtrain.watch.job import build_job_script, lead_s
from slurmtrain.watch.units import UNIT, Installation, build_cron, build_scrontab, build_systemd, find_installation

REPOSITORY = Path(__file__).resolve().parents[3]
ODD = "a b%d $HOME 'q\" é"  # blanks, both quotes, systemd's and cron's percent, a variable


@pytest.fixture
def installed(tmp_path: Path) -> Installation:
    """A slurmtrain in a folder with a nasty name, which writes down how it was called."""
    folder = tmp_path / ODD
    folder.mkdir()
    program = folder / "slurmtrain"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@" >"${0%/*}/called"\nprintf "%s\\n" "$PATH" >"${0%/*}/path"\n')
    program.chmod(0o755)
    return Installation((str(program),), {"PATH": f"{folder}:/usr/bin:/bin"}, folder / "store")


def called(installed: Installation) -> list[str]:
    return (Path(installed.program[0]).parent / "called").read_text().splitlines()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(installed: Installation, tmp_path: Path) -> None:
    unit = tmp_path / UNIT
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}

    def verify(text: str) -> subprocess.CompletedProcess[str]:
        unit.write_text(text)
        return subprocess.run(
            ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True, env=env, timeout=60
        )

    text = build_systemd(installed, 60)
    result = verify(text)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    plain = Installation((str(tmp_path / "a b%d"),), {}, tmp_path / "a b%d")
    assert verify(build_systemd(plain, 60)).returncode != 0, "it does look for the program"
    shutil.copy(installed.program[0], plain.program[0])
    assert verify(build_systemd(plain, 60)).returncode == 0


def test_the_cron_line_runs_what_it_says(installed: Installation, tmp_path: Path) -> None:
    line = build_cron(installed).splitlines()[-1]
    minutes, *stars, command = line.split(" ", 5)
    assert stars == ["*"] * 4
    start, _, step = minutes.partition("/")
    assert step == "5"
    assert int(start.partition("-")[0]) < 5
    assert "%" not in command.replace("\\%", ""), "an unescaped percent sign would end the line"
    told = command.replace("\\%", "%")  # what cron does before it calls sh
    subprocess.run(["/bin/sh", "-c", told], check=True, env={}, cwd="/", timeout=60)
    assert called(installed) == ["watch", "--once", "--store", str(installed.store)]
    path = (Path(installed.program[0]).parent / "path").read_text().strip()
    assert path == installed.variables["PATH"]


@pytest.mark.skipif(shutil.which("crontab") is None, reason="no cron here")
def test_cron_takes_the_line(installed: Installation, tmp_path: Path) -> None:
    """Debian's cron and cronie spell the dry run differently."""
    table = tmp_path / "crontab"

    def check(text: str) -> int:
        table.write_text(text)
        options = ("-n", "-T")
        codes = [
            subprocess.run(["crontab", o, str(table)], capture_output=True, timeout=60).returncode for o in options
        ]
        return min(codes)

    assert check(build_cron(installed)) == 0
    assert check(build_cron(installed).replace(" * * * * ", " * * * x ")) != 0


def test_a_line_that_cron_would_cut_is_refused(installed: Installation) -> None:
    long = Installation(installed.program, installed.variables, Path("/" + "x" * 900))
    with pytest.raises(UsageError, match="shorten"):
        build_cron(long)


def test_the_scrontab_entry_runs_what_it_says(installed: Installation) -> None:
    lines = build_scrontab(installed, ["--partition=cpu", "--time=5"]).splitlines()
    options = [line.removeprefix("#SCRON ") for line in lines if line.startswith("#SCRON ")]
    assert "--partition=cpu" in options
    assert [option for option in options if option.startswith("--time")] == ["--time=5"]
    command = lines[-1].split(" ", 5)[-1]
    subprocess.run(["/bin/sh", "-c", command], check=True, env={}, cwd="/", timeout=60)
    assert called(installed) == ["watch", "--once", "--store", str(installed.store)]
    log = next(option for option in options if option.startswith("--output"))
    assert "%%d" in log, "Slurm reads a percent sign in a file name as a pattern"


def test_the_job_script_is_bash_and_runs_what_it_says(installed: Installation, tmp_path: Path) -> None:
    script = build_job_script(installed, 30, "1:00:00", ["--partition=cpu"])
    subprocess.run(["/bin/bash"], input=script, text=True, check=True, env={"PATH": "/usr/bin:/bin"}, timeout=60)
    assert called(installed) == ["watch", "--in-job", "--interval", "30", "--store", str(installed.store)]
    assert "#SBATCH --dependency=singleton" in script
    assert "#SBATCH --partition=cpu" in script


def test_room_is_made_before_the_time_limit() -> None:
    assert [lead_s(limit) for limit in ("1", "5", "1-00:00:00", "UNLIMITED")] == [12, 60, 120, 120]


def test_the_installation_that_runs_now(tmp_path: Path) -> None:
    tools = tmp_path / "slurm bin"
    tools.mkdir()
    (tools / "squeue").write_text("#!/bin/sh\n")
    (tools / "squeue").chmod(0o755)
    environ = {"PATH": f"{tools}:/bin", "SLURM_CONF": "/opt/slurm.conf", "SLURM_JOB_ID": "7"}
    found = find_installation(tmp_path / "store", environ)
    assert found.variables == {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin", "SLURM_CONF": "/opt/slurm.conf"}
    assert Path(found.program[0]).is_absolute()
    answer = subprocess.run([*found.program, "--version"], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert "slurmtrain" in answer.stdout
    with pytest.raises(NotFoundError, match="squeue"):
        find_installation(tmp_path, {"PATH": "/nonexistent"})
    with pytest.raises(UsageError, match="backslash"):
        find_installation(tmp_path / "a\\b", environ)
