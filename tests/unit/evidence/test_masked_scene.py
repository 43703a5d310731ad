"""No collector, whoever wrote it and however it ended, leaves a secret in the scene."""

from __future__ import annotations

from pathlib import Path

from slurmtrain.core.spec import Environment, Spec
from slurmtrain.evidence.collector import parse_collector
from slurmtrain.evidence.request import Request, build_scene
from slurmtrain.evidence.scene import Scene
from slurmtrain.evidence.take import take_scene
from slurmtrain.store.rundir import Plan, RunDir

SECRET = "pl4nted-Secret-77"
ENVIRON = {"MY_SERVICE_TOKEN": SECRET, "PATH": "/bin"}
SOURCES = {
    "a.py": "def collect(scene):\n    print(dict(scene.environ))\n    open('raw', 'w').write(f'x {SECRET} y' * 3)\n",
    "b.sh": '#!/bin/sh\ncat\necho "note: saw {SECRET}" >&2\n',
    "c.py": "def collect(scene):\n    scene.write('w.txt', 'it is {SECRET}')\n    scene.note('{SECRET}')\n    1 / 0\n",
    "d.py": "def collect(scene):\n    raise ValueError('bad value {SECRET}')\n",
    "e.sh": "#!/bin/sh\n# TIME_LIMIT_S = 0.5\nmkdir -p a/b\necho {SECRET} > a/b/f\nsleep 60\n",
    "f.py": "SIZE_LIMIT = 100\n\n\ndef collect(scene):\n    scene.write('w.txt', '{SECRET} ' * 1000)\n",
}


def everything(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.rglob("*") if path.is_file())


def test_what_collectors_write_say_and_fail_with_is_masked(tmp_path: Path) -> None:
    run = tmp_path / "store" / "runs" / "r"
    run.mkdir(parents=True)
    scene = Scene(out=tmp_path, node="n1", ending="failed", run_dir=run, job_id="7", environ=ENVIRON)
    sources = {name: text.replace("{SECRET}", SECRET) for name, text in SOURCES.items()}
    taken = take_scene([parse_collector(name, text, "test") for name, text in sources.items()], scene, 20.0)
    kept = everything(taken.folder)
    assert "pl4nted" not in kept
    assert kept.count("***") >= 8
    assert "'PATH': '/bin'" in kept
    assert {t.name: t.status for t in taken.takings} == {
        "a": "taken", "b": "taken", "c": "failed", "d": "failed", "e": "timed_out", "f": "taken",
    }  # fmt: skip
    assert not list(taken.folder.rglob(".*"))


def test_bytes_that_are_no_text_stay(tmp_path: Path) -> None:
    run = tmp_path / "store" / "runs" / "r"
    run.mkdir(parents=True)
    scene = Scene(out=tmp_path, node="n1", ending="failed", run_dir=run)
    source = "def collect(scene):\n    scene.write('core', bytes(range(256)) * 9)\n"
    taken = take_scene([parse_collector("a.py", source, "test")], scene, 20.0)
    assert (taken.folder / "a" / "core").read_bytes() == bytes(range(256)) * 9


def test_the_secrets_of_the_job_file_are_known_to_every_node(tmp_path: Path) -> None:
    """Only the ranks have these variables in their environment; whoever takes the scene has not."""
    spec = Spec(command=("true",), environment=Environment(variables={"WANDB_API_KEY": "0a1b2c3d4e5f", "RANK_TO": "1"}))
    request = Request(tmp_path, "n1", "failed", 0, 0, environ={"RANK_TO": "2"})
    scene = build_scene(request, RunDir(tmp_path), Plan("r", spec, {}))
    assert scene.environ == {"WANDB_API_KEY": "0a1b2c3d4e5f", "RANK_TO": "2"}
    assert scene.mask("key 0a1b2c3d4e5f") == "key ***"
