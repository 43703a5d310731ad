"""Taking a scene on this machine with real processes: limits, order, what is left behind."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from slurmtrain.errors import StoreError
from slurmtrain.evidence.collector import Collector, parse_collector
from slurmtrain.evidence.manifest import NodeScene, has_scene, read_scenes
from slurmtrain.evidence.scene import Scene
from slurmtrain.evidence.take import take_scene

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time, os; os.setpgid(0, 0); time.sleep(99)"])
open("pid", "w").write(str(child.pid))
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def python(name: str, body: str, head: str = "") -> Collector:
    lines = "\n    ".join(body.strip().splitlines())
    return parse_collector(f"{name}.py", f"{head}\ndef collect(scene):\n    {lines}\n", "test")


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    run = tmp_path / "store" / "runs" / "r"
    run.mkdir(parents=True)
    return Scene(out=tmp_path, node="n1", ending="failed", run_dir=run, job_id="7", environ={"A": "b"})


def take(scene: Scene, *collectors: Collector, budget_s: float = 20.0) -> NodeScene:
    taken = take_scene(collectors, scene, budget_s)
    (again,) = read_scenes(scene.launch_dir)
    assert again == taken
    assert taken.complete
    return taken


def test_files_output_notes_and_failures(scene: Scene) -> None:
    taken = take(
        scene,
        python("a", "scene.write('x.txt', 'found')\nscene.note('no  \\x1b[31m tool')\nprint('hello')"),
        python("b", "raise OSError(5, 'it broke')"),
        python("c", "pass"),
        parse_collector("d.sh", "#!/bin/sh\ncat\necho 'note: from sh' >&2\necho 'too bad' >&2\nexit 3\n", "test"),
        python("e", "scene.run('no-such-program')\nprint(scene.run('printf', 'x%.0s', '1', '2').stdout)"),
    )
    a, b, c, d, e = taken.takings
    assert (a.status, a.files, a.size, a.notes) == ("taken", ("output.txt", "x.txt"), 11, ("no  [31m tool",))
    assert (b.status, b.why) == ("failed", "OSError: [Errno 5] it broke")
    assert (c.status, c.files) == ("taken", ())
    assert not (taken.folder / "c").exists()
    assert (d.status, d.why, d.notes) == ("failed", "too bad", ("from sh",))
    told = json.loads((taken.folder / "d" / "output.txt").read_text())
    assert (told["job_id"], told["node"], told["environ"], told["launch_dir"]) == (
        "7",
        "n1",
        {"A": "b"},
        str(scene.launch_dir),
    )
    assert (e.status, (taken.folder / "e" / "output.txt").read_text()) == ("taken", "xx\n")
    assert e.notes == ("cannot run no-such-program: no-such-program: No such file or directory",)


def test_a_program_has_ended_though_what_it_left_running_holds_its_output_open(scene: Scene) -> None:
    body = "done = scene.run('sh', '-c', 'sleep 60 & echo told')\nprint(done.returncode, done.stdout)"
    taken = take(scene, python("a", body))
    assert (taken.takings[0].status, taken.takings[0].notes) == ("taken", ())
    assert (taken.folder / "a" / "output.txt").read_text() == "0 told\n\n"


def test_only_the_owner_may_look_in(scene: Scene) -> None:
    taken = take(scene, python("a", "scene.write('x', 'x')\nimport os\nos.chmod('x', 0o666)"))
    for path, mode in ((taken.folder.parent, 0o700), (taken.folder, 0o700), (taken.folder / "a", 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE((taken.folder / "a" / "x").stat().st_mode) == 0o600


def test_one_that_ignores_signals_and_stops_is_ended_with_its_children(scene: Scene) -> None:
    started = time.monotonic()
    taken = take(scene, python("a", STUBBORN, "TIME_LIMIT_S = 1"), python("b", "print(1)"))
    assert time.monotonic() - started < 15
    assert (taken.takings[0].status, taken.takings[0].why) == ("timed_out", "its time limit was over")
    assert taken.takings[1].status == "taken"
    child = int((taken.folder / "a" / "pid").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize(
    "body",
    [
        "while True: print('x' * 1000)",
        "import os\nwhile True: os.write(2, b'y' * 4096)",
        "for i in range(10**6): open(f'f{i}', 'w').write('z' * 1000)",
        "import os\nwhile True: os.write(1, b'y' * 4096)",
    ],
)
def test_one_that_floods_is_cut_off(scene: Scene, body: str) -> None:
    head = "TIME_LIMIT_S = 3\nSIZE_LIMIT = 100_000"
    taken = take(scene, python("a", body, head), python("b", "print(1)"))
    a, b = taken.takings
    folder = taken.folder / "a"
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) <= 100_000
    assert a.size <= 100_000
    assert a.truncated == (a.size > 0)
    assert len(a.files) <= 40
    assert a.count <= 500
    assert b.status == "taken"


def test_a_script_that_floods_is_cut_off(scene: Scene) -> None:
    yes = parse_collector("y.sh", "#!/bin/sh\n# SIZE_LIMIT = 5000\n# TIME_LIMIT_S = 5\nyes\n", "test")
    (taking,) = take(scene, yes).takings
    assert (taking.size, taking.truncated) == (5000, True)


def test_links_and_fifos_are_removed(scene: Scene, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s" * 10)
    body = f"import os\nos.symlink({str(secret)!r}, 'l')\nos.mkfifo('f')\nos.symlink('/', 'd')\nprint('ok')"
    taken = take(scene, python("a", body))
    assert sorted(p.name for p in (taken.folder / "a").iterdir()) == ["output.txt"]
    assert secret.read_text() == "s" * 10


def test_the_budget_ends_all_and_says_so(scene: Scene) -> None:
    slow = [python(f"s{i}", "import time\ntime.sleep(60)") for i in range(6)]
    started = time.monotonic()
    taken = take(scene, *slow, budget_s=1.0)
    assert time.monotonic() - started < 15
    assert {t.status for t in taken.takings} == {"timed_out", "skipped"}
    assert [t.status for t in taken.takings].count("timed_out") == 4
    assert {t.why for t in taken.takings} == {"the time for the scene was over", "the 1 s for the scene were over"}


def test_driver_collectors_run_last_alone_and_only_until_one_is_silent(scene: Scene) -> None:
    driver = "DRIVER = True\nTIME_LIMIT_S = 1"
    taken = take(
        scene,
        python("a-smi", "import time\ntime.sleep(60)", driver),
        python("b-nvlink", "print(1)", driver),
        python("z", "print(1)"),
    )
    assert [(t.name, t.status) for t in taken.takings] == [
        ("z", "taken"),
        ("a-smi", "timed_out"),
        ("b-nvlink", "skipped"),
    ]
    assert taken.takings[2].why == "the driver had not answered a-smi"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"cause": "gpu_lost"}, ["batch", "plain"]),
        ({"batch_host": False}, ["plain", "smi"]),
        ({"ending": "after"}, ["watch"]),
        ({"ending": "hung"}, ["batch", "hung", "plain", "smi"]),
        ({}, ["batch", "plain", "smi"]),
    ],
)
def test_which_run_where(tmp_path: Path, values: dict[str, object], names: list[str]) -> None:
    base = {"node": "n1", "ending": "failed", "run_dir": tmp_path / "s" / "runs" / "r"}
    collectors = [
        python("smi", "print(1)", "DRIVER = True"),
        python("plain", "print(1)"),
        python("batch", "print(1)", "WHERE = 'batch_host'"),
        python("watch", "print(1)", "WHERE = 'watcher'"),
        python("hung", "print(1)", "ENDINGS = ('hung',)"),
    ]
    taken = take_scene(collectors, Scene(out=tmp_path, **{**base, **values}), 20)  # type: ignore[arg-type]
    assert sorted(t.name for t in taken.takings if t.status == "taken") == names
    skipped = [t.why for t in taken.takings if t.status == "skipped"]
    assert skipped == (["not asked after gpu_lost"] if values.get("cause") else [])


def test_a_second_scene_has_a_folder_of_its_own(scene: Scene) -> None:
    first, second = take_scene([], scene, 5), take_scene([], scene, 5)
    assert (first.folder.name, second.folder.name) == ("n1", "n1+2")
    assert [s.node for s in read_scenes(scene.launch_dir)] == ["n1", "n1"]
    assert has_scene(scene.launch_dir)


def test_hostile_node_names_stay_inside(scene: Scene, tmp_path: Path) -> None:
    import dataclasses

    taken = take_scene([], dataclasses.replace(scene, node="../../x+y"), 5)
    assert taken.folder == scene.launch_dir / "scene" / ".._.._x_y"


def test_a_store_that_takes_nothing_is_said_once(scene: Scene) -> None:
    scene.launch_dir.parent.mkdir(parents=True)
    scene.launch_dir.write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="cannot keep the scene"):
        take_scene([python("a", "print(1)")], scene, 5)
    assert not has_scene(scene.launch_dir)


def test_damaged_manifests_are_left_out(scene: Scene) -> None:
    taken = take_scene([python("a", "print(1)")], scene, 5)
    manifest = taken.folder / "manifest.json"
    for text in ("", "[]", "{", json.dumps({"collectors": [1, {"name": 3, "size": "x", "files": "y"}], "at": "no"})):
        manifest.write_text(text)
        found = read_scenes(scene.launch_dir)
        assert len(found) == (1 if "collectors" in text else 0)
    manifest.unlink()
    os.mkfifo(manifest)
    assert read_scenes(scene.launch_dir) == []
