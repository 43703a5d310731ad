"""What `slurmtrain status` prints: for a pipe, for a terminal, and for hostile names."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import MadeRun, Slurm, make_run

from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.events import SceneTaken
from slurmtrain.evidence.manifest import TAKEN, NodeScene, Taking, write_manifest

REPO = Path(__file__).resolve().parents[3]


def _environ(**more: str) -> dict[str, str]:
    """Without Slurm's commands: the PATH holds nothing."""
    return {"PATH": "/nonexistent", "HOME": "/nonexistent", "PYTHONPATH": str(REPO), "LANG": "C.UTF-8", **more}


def _call(store: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "slurmtrain", "status", "--store", str(store), *words]
    return subprocess.run(argv, capture_output=True, text=True, env=_environ(**more), cwd="/", timeout=60, check=False)


def _on_a_terminal(store: Path, columns: int) -> str:
    argv = [sys.executable, "-m", "slurmtrain", "status", "--store", str(store)]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, _environ(COLUMNS=str(columns), TERM="xterm"))
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the other side has closed
            break
        if not data:
            break
        shown += data
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, shown
    return shown.decode()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    slurm = Slurm()
    for number, (action, state) in enumerate(
        [(Action.STOP, RunState.FAILED), (Action.COMPLETE, RunState.COMPLETED), (Action.HOLD, RunState.HELD)]
    ):
        run = make_run(tmp_path, f"run-{number}", name="evil\x1b[2J\nname")
        run.attempt(run.submitted(slurm))
        run.decided(0, action, state, reason="because of \x1b]0;owned\x07 it\nand so on")
    return tmp_path


def test_a_pipe_gets_one_plain_line_for_each_run(store: Path) -> None:
    done = _call(store)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["RUN", "STATE"],
        ["run-0", "Failed"],
        ["run-1", "Completed"],
        ["run-2", "Held"],
    ]
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)


def test_a_pipe_gets_lines_of_a_sensible_width(tmp_path: Path) -> None:
    slurm = Slurm()
    nodes = f"n[{','.join(str(2 * number) for number in range(60))}]"
    long_id = f"{'a-long-name-' * 3}20261129-1837-00000001"
    for run_id in ("short", long_id):
        run = make_run(tmp_path, run_id)
        run.attempt(run.submitted(slurm), nodes=nodes)
        run.decided(0, Action.STOP, RunState.FAILED, reason="because of a long story " * 20)
    head, *lines = _call(tmp_path).stdout.splitlines()
    short, long = sorted(lines, key=len)
    assert len(short) <= 160
    assert len(long) <= 180
    assert long.split()[0] == long_id, "an id is never cut"
    assert "60 nodes" in short
    assert short.endswith("…")
    assert head.index("WHY") < 100, "one long id does not push the columns of all lines away"
    assert len(sorted(_call(tmp_path, COLUMNS="155").stdout.splitlines(), key=len)[1]) <= 155
    assert "…" not in _call(tmp_path, "short").stdout, "who names a run gets all of it"


def test_a_terminal_gets_a_table_that_fits(store: Path) -> None:
    shown = _on_a_terminal(store, 70)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")
    assert "\x1b" not in plain
    assert "\x07" not in plain
    rows = [line for line in plain.splitlines() if not line.startswith("slurmtrain:")]
    assert max(len(line) for line in rows) <= 70
    assert "Completed" in plain


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_ids_and_states_of_many_runs_are_whole_on_every_terminal(tmp_path: Path, columns: int) -> None:
    slurm = Slurm()
    ids = [f"setupfail-20261129-1837-{number:08x}" for number in range(5)]
    for run_id in ids:
        run = make_run(tmp_path, run_id)
        run.attempt(run.submitted(slurm))
        run.decided(0, Action.STOP, RunState.FAILED, reason="because of a long story " * 10)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", _on_a_terminal(tmp_path, columns)).replace("\r\n", "\n")
    rows = [line for line in plain.splitlines() if not line.startswith("slurmtrain:")]
    assert [row.split()[:2] for row in rows] == [["RUN", "STATE"], *([run_id, "Failed"] for run_id in ids)]
    assert max(len(row) for row in rows) <= columns


def test_active_last_and_vocabulary_choose(store: Path) -> None:
    assert [row["run_id"] for row in json.loads(_call(store, "--active", "--json").stdout)] == ["run-2"]
    assert [row["run_id"] for row in json.loads(_call(store, "--last", "2", "--json").stdout)] == ["run-1", "run-2"]
    assert "JOB_STATE_PAUSED" in _call(store, "--vocabulary", "vertex").stdout
    assert _call(store, "--vocabulary", "klingon").returncode == 2


def test_slurm_that_cannot_be_asked_is_a_note_and_no_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.submitted(Slurm())
    done = _call(tmp_path)
    assert done.returncode == 0
    assert "train-1" in done.stdout
    assert "what the journals know" in done.stderr


def test_names_that_fit_nothing_or_too_much(store: Path) -> None:
    assert _call(store, "nothere").returncode == 3
    done = _call(store, "run-")
    assert done.returncode == 3
    assert "3 runs" in done.stderr
    assert _call(store / "nothing").returncode == 0


def test_the_plain_list_loads_no_table_library(store: Path) -> None:
    code = (
        "import sys\nsys.argv[1:] = ['status']\nfrom slurmtrain.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(sorted({'rich', 'jinja2', 'paramiko', 'watchdog', 'yaml'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_environ(SLURMTRAIN_STORE=str(store)),
        cwd="/", timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] in {"[]", "['yaml']"}, done.stderr


def test_runs_of_an_array_in_one_state_share_a_line(tmp_path: Path) -> None:
    slurm = Slurm()
    for task in range(5):
        run = make_run(tmp_path, f"sweep-{task}", name="sweep")
        run.attempt(run.submitted(slurm))
        if task in {0, 1, 4}:
            run.decided(0, Action.COMPLETE, RunState.COMPLETED, reason="all done" if task else "first done")
    make_run(tmp_path, "single", name="single")
    (tmp_path / "groups" / "sweep").mkdir(parents=True)
    (tmp_path / "groups" / "sweep" / "group.json").write_text(json.dumps({"tasks": list(range(5))}))
    lines = _call(tmp_path).stdout.splitlines()
    assert len(lines) == 4
    (ended,) = [line for line in lines if line.startswith("sweep-[0-1,4]  Completed x3")]
    assert ended.endswith("2 of 3: unknown: all done")
    assert any(line.startswith("sweep-[2-3]") and " x2 " in line for line in lines)
    assert len(_call(tmp_path, "-r").stdout.splitlines()) == 7
    assert len(json.loads(_call(tmp_path, "--json", "sweep").stdout)) == 5
    assert _call(tmp_path, "sweep-3").stdout.splitlines()[1].startswith("sweep-3 ")
    assert _call(tmp_path, "--vocabulary", "kubernetes", "sweep").stdout.count(" x") == 2


def _keep_scene(run: MadeRun, text: str, *, nodes: int, of: int) -> Path:
    folder = run.dir.attempt(0).launch(0) / "scene" / "n1"
    (folder / "12-kernel").mkdir(parents=True)
    (folder / "12-kernel" / "dmesg.txt").write_text("words\n")
    taking = Taking("12-kernel", TAKEN, files=("dmesg.txt",), notes=(text,))
    write_manifest(NodeScene(folder, "n1", "failed", "oom", 1.0, 1.0, 60.0, complete=True, takings=(taking,)))
    path = os.path.relpath(folder.parent, run.dir.path)
    taken = SceneTaken(at=run.now(), who="agent", attempt=0, launch=0, path=path, ending="failed", nodes=nodes, of=of)
    run.write(taken)
    return folder.parent


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.HELD])
def test_the_scene_of_a_failure_is_named_in_a_line_that_fits(tmp_path: Path, state: RunState) -> None:
    run = make_run(tmp_path, "run-0")
    run.launch(run.attempt(run.submitted(Slurm())))
    scene = _keep_scene(run, "Xid 79 of GPU 0000:41:00: fallen off the bus \x1b[2J" + "x" * 300, nodes=1, of=2)
    run.decided(0, Action.HOLD if state is RunState.HELD else Action.STOP, state)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", _on_a_terminal(tmp_path, 70)).replace("\r\n", "\n").splitlines()
    (line,) = (line for line in shown if line.startswith("scene"))
    assert line.startswith("scene of run-0: 1 of 2 nodes, not complete: n1: Xid 79 of GPU 0")
    assert len(line) <= 70
    assert "\x1b" not in line
    assert shown[-1] == f"  {scene}"
    (row,) = json.loads(_call(tmp_path, "run-0", "--json").stdout)
    found = row["scene"].pop("finding")
    assert found.startswith("n1: Xid 79")
    assert row["scene"] == {
        "attempt": 0, "launch": 0, "path": str(scene), "nodes": 1, "of": 2, "complete": False,
    }  # fmt: skip
    shutil.rmtree(scene)
    assert "kept on 1 of 2 nodes and has been deleted" in _call(tmp_path).stdout


def test_of_many_runs_only_the_newest_scenes_are_read(tmp_path: Path) -> None:
    for number in range(6):
        run = make_run(tmp_path, f"run-{number}")
        run.launch(run.attempt(run.submitted(Slurm())))
        _keep_scene(run, "Xid 79", nodes=1, of=1)
        run.decided(0, Action.STOP, RunState.FAILED)
    assert _call(tmp_path).stdout.count("scene of run-") == 3
    assert _call(tmp_path, "run-0").stdout.count("scene of run-0: 1 of 1 nodes: n1: Xid 79") == 1
    rows = json.loads(_call(tmp_path, "--json").stdout)
    assert [row["scene"]["finding"] for row in rows].count(None) == 3
