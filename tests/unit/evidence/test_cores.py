"""Core dumps: a process that really crashes here, and what sites do with core files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmtrain.core.spec import CoreDumps, Spec, spec_to_dict
from slurmtrain.evidence.bounded import Output
from slurmtrain.evidence.core_file import read_core_file
from slurmtrain.evidence.cores import PATTERN, ask_handler, core_glob, piped_to, prune_cores
from slurmtrain.evidence.manifest import Taking

Collect = Callable[..., tuple[Taking, Path]]
SECRET = "pl4nted-Secret-77"
CRASH = "import ctypes; ctypes.string_at(0)"
HERE = PATTERN.read_text().strip()
pytestmark = pytest.mark.skipif(not HERE.startswith("core"), reason=f"core files of this machine go to {HERE}")


@pytest.fixture
def run(tmp_path: Path, collect: Collect) -> Path:
    """The run directory of ``collect``, with core dumps on."""
    run = tmp_path / "store" / "runs" / "r"
    spec = Spec(command=("python", "train.py"), core_dumps=CoreDumps(enabled=True))
    (run / "plan.json").write_text(json.dumps({"spec": spec_to_dict(spec), "run_id": "r"}))
    return run


def crash(folder: Path, run: Path, rank: int, key: str = "0.0") -> Path:
    """Die of SIGSEGV for real; the core file, under a name of its own so that the next one finds ``core`` free."""
    told = {"SLURMTRAIN_RUN_DIR": str(run), "SLURMTRAIN_LAUNCH_KEY": key, "RANK": str(rank), "API_KEY": SECRET}
    environ = {**os.environ, **told}
    before = set(folder.glob("core*"))
    command = f'ulimit -S -c unlimited; exec "$@" --token {SECRET}'
    done = subprocess.run(
        ["bash", "-c", command, "x", sys.executable, "-c", CRASH], cwd=folder, env=environ, timeout=120
    )
    assert done.returncode == -signal.SIGSEGV
    (core,) = set(folder.glob("core*")) - before
    return core.rename(folder / f"core.{rank}{time.monotonic_ns()}")


def test_a_core_file_tells_program_signal_and_environment(tmp_path: Path) -> None:
    core = read_core_file(crash(tmp_path, tmp_path, 3))
    assert core is not None
    assert core.signal == signal.SIGSEGV
    assert core.program == os.path.realpath(sys.executable)
    assert core.environ["RANK"] == "3"
    assert core.environ["SLURMTRAIN_LAUNCH_KEY"] == "0.0"
    (tmp_path / "text").write_text("no core")
    assert read_core_file(tmp_path / "text") is None
    assert read_core_file(Path(sys.executable)) is None


def test_the_first_crash_of_a_launch_is_kept_with_its_back_trace(collect: Collect, run: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    began = time.time() - 1
    other = crash(work, run, 9, key="0.7")
    crash(work, run, 2)
    crash(work, run, 5)
    taking, folder = collect("core-dumps", work_dir=work, since=began, environ={"API_KEY": SECRET})
    assert taking.status == "taken", taking.why
    launch = run / "attempts/000/launches/0"
    (kept,) = launch.glob("cores/core-*")
    assert kept.name.startswith("core-rank-2-")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (launch / "cores").stat().st_mode & 0o777 == 0o700
    assert "died of SIGSEGV; core file" in taking.notes[0]
    assert "rank 5" in taking.notes[1]
    assert "is not kept, another rank's is" in taking.notes[1]
    assert list(work.glob("core*")) == [other]  # of another launch: not ours to touch
    if shutil.which("gdb"):
        trace = (folder / "back-trace-2.txt").read_text()
        assert "#0" in trace
        assert "SIGSEGV" in trace
        assert SECRET not in trace


def test_nothing_is_looked_for_unless_the_job_file_asks(collect: Collect, run: Path, tmp_path: Path) -> None:
    spec = Spec(command=("python", "train.py"))
    (run / "plan.json").write_text(json.dumps({"spec": spec_to_dict(spec), "run_id": "r"}))
    core = crash(tmp_path, run, 0)
    taking, _ = collect("core-dumps", work_dir=tmp_path, since=time.time() - 60)
    assert (taking.status, taking.notes) == ("taken", ())
    assert core.exists()


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("core\n", "/w/core*"),
        ("core.%e.%p", "/w/core.*.**"),
        ("/cores/%h/core-%t", "/cores/*/core-**"),
        ("100%%[x]", "/w/100%[[]x]*"),
        ("|/usr/lib/systemd/systemd-coredump %P", None),
        ("", None),
    ],
)
def test_where_the_kernel_puts_core_files(pattern: str, place: str | None) -> None:
    found = core_glob(pattern, Path("/w"))
    assert (str(found) if found else None) == place


def test_sites_that_hand_core_files_to_a_program_are_told(collect: Collect, run: Path, tmp_path: Path) -> None:
    pattern = tmp_path / "core_pattern"
    pattern.write_text("|/usr/share/apport/apport -p%p -s%s\n")
    assert piped_to(pattern.read_text()) == "/usr/share/apport/apport"
    edit = ("pattern = PATTERN.read_text()", f"pattern = open({str(pattern)!r}).read()")
    taking, _ = collect("core-dumps", work_dir=tmp_path, since=time.time(), edit=edit)
    assert taking.notes == ("apport has this node's core files, in /var/crash; it left none since the launch began",)
    pattern.write_text("|/opt/site/collect-core %p\n")
    taking, _ = collect("core-dumps", work_dir=tmp_path, since=time.time(), edit=edit)
    assert taking.notes == (
        "this node hands core files to /opt/site/collect-core: ask the administrators where they are",
    )


def test_systemd_is_asked_for_what_it_knows() -> None:
    asked = []

    def run(*argv: str, **_: object) -> Output:
        asked.append(argv)
        return Output(
            0, "TIME PID UID GID SIG COREFILE EXE SIZE\nMon 7 1000 1000 SIGSEGV present /usr/bin/python3 9M\n", ""
        )

    report, how = ask_handler("/usr/lib/systemd/systemd-coredump", 1767600000.0, run)
    assert "SIGSEGV present" in report
    assert "coredumpctl dump PID" in how
    assert asked[0] == ("coredumpctl", "--no-pager", "list", "--since=@1767600000")


def test_core_files_of_older_launches_go(tmp_path: Path) -> None:
    folders = [tmp_path / f"attempts/{a:03d}/launches/{n}/cores" for a in (0, 1) for n in (0, 2, 10)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "core-rank-0-1").write_bytes(b"x")
    assert prune_cores(tmp_path, 2) == folders[:4]
    assert [folder.exists() for folder in folders] == [False] * 4 + [True] * 2
