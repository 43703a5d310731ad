"""The helper for training code, in processes as a training would use it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training_process import SOURCE, python, said

from slurmtrain.logs.step import read_step


def test_outside_of_slurmtrain_nothing_happens(tmp_path: Path) -> None:
    code = (
        "import signal, helper as h\nh.heartbeat(step=1)\nh.done()\n"
        "print(h.should_stop(), h.resume_from(), h.stop_reason(), h.active(), h.rank(), h.checkpoint_dir())\n"
        "assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL"
    )
    assert said(python(code, tmp_path)) == "False None None False 0 checkpoints"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["helper.py"]


LOOP = """
import signal, time, helper as h
signal.signal(signal.SIGUSR2, lambda *_: print("mine too", flush=True))
h.listen()
print("ready", flush=True)
while not h.should_stop(): time.sleep(0.02)
print("leaves:", h.stop_reason())
"""


@pytest.mark.parametrize("way", ["signal", "file"])
def test_asked_to_stop_by_signal_or_file(way: str, tmp_path: Path) -> None:
    process = python(LOOP, tmp_path, SLURMTRAIN_RUN_ID="r", SLURMTRAIN_STOP_FILE=str(tmp_path / "stop"))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    if way == "file":
        (tmp_path / "stop").write_text("time_limit\n")
    else:
        process.send_signal(signal.SIGUSR2)
    assert said(process) == {"signal": "mine too\nleaves: None", "file": "leaves: time_limit"}[way]


def test_a_stop_signal_that_comes_while_it_leaves_already_does_not_kill_it(tmp_path: Path) -> None:
    code = """
import time, helper as h
class Slow:
    def __del__(self, say=print, sleep=time.sleep):
        say("late", flush=True)
        sleep(2)
slow = Slow()
h.listen()
"""
    process = python(code, tmp_path, SLURMTRAIN_RUN_ID="r")
    assert process.stdout is not None
    assert process.stdout.readline() == "late\n"
    process.send_signal(signal.SIGUSR2)
    said(process)


def test_a_heartbeat_is_whole_bounded_and_of_rank_0_alone(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    code = "import helper as h\nfor n in range(500): h.heartbeat(step=n, loss=0.5)\nh.heartbeat(step=7, pause_s=600)"
    said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT=str(path), RANK="1"))
    assert not path.exists()
    said(python(code.rpartition("\n")[0], tmp_path, SLURMTRAIN_HEARTBEAT=str(path), RANK="0"))
    step, _, rest = path.read_text().partition(" ")
    assert (step, json.loads(rest)["loss"]) == ("0", 0.5), "the others came too soon after the first"
    assert read_step(path, [(tmp_path / "no.log", 0, None)]) == 0
    said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT=str(path)))
    step, _, rest = path.read_text().partition(" ")
    assert step == "7"
    assert json.loads(rest)["pause_until"] > time.time() + 300
    said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT="/proc/none/heartbeat"))  # never the training's death


def test_a_heartbeat_tells_the_speed_since_the_first_step(tmp_path: Path) -> None:
    """What came before the first step was loading; that takes minutes, and says nothing of the steps."""
    path = tmp_path / "heartbeat"
    code = (
        "import helper as h, time\ntime.sleep(1)\nh.heartbeat(step=100)\ntime.sleep(0.5)\n"
        "h.heartbeat(step=105, pause_s=600)"
    )
    said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT=str(path), RANK="0"))
    step, _, rest = path.read_text().partition(" ")
    assert step == "105"
    assert 0.5 < json.loads(rest)["steps_per_s"] <= 10


def test_a_heartbeat_tells_how_long_the_last_save_took(tmp_path: Path) -> None:
    path = tmp_path / "heartbeat"
    code = (
        "import helper as h, time\n"
        "with h.atomic_save('c/step-1.pt') as p:\n    p.write_text('x')\n    time.sleep(0.3)\n"
        "h.heartbeat(step=1)"
    )
    said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT=str(path)))
    assert 0.3 <= json.loads(path.read_text().partition(" ")[2])["save_s"] < 60


def test_a_heartbeat_never_ends_a_training(tmp_path: Path) -> None:
    code = """
import os, helper as h
for step in (1, -1, 10**400, float("nan"), float("inf"), "x", None, object()):
    h._beat_at = h._here = -1e9
    h._here = (-1e9, 0, 0, "-")
    h.heartbeat(step=step, pause_s=1, loss="much", busy_s="?")
    h.heartbeat(step=step, loss=float("nan"), busy_s=float("inf"))
    h.heartbeat(pause_s=float("inf"))
os.environ["RANK"] = chr(0xB2)
print(h.rank())
h.done()
"""
    env = {"SLURMTRAIN_HEARTBEAT": str(tmp_path / "beat"), "SLURMTRAIN_BEATS": str(tmp_path / "beats")}
    text = said(python(code, tmp_path, **env, SLURMTRAIN_DONE_FILE=str(tmp_path / "no" / "folder" / "done")))
    assert text.splitlines()[0] == "0"
    assert "the end of the training cannot be noted in" in text.splitlines()[1]


def test_what_is_no_number_is_left_out_of_a_heartbeat(tmp_path: Path) -> None:
    code = """
import helper as h
class Tensor:  # of several numbers, or without any
    def __float__(self): raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
    __int__ = __float__
h.heartbeat(step=5, pause_s=None, loss=0.5, phase="warm-up", grad_norm=None, accuracy=Tensor(), busy_s=Tensor())
"""
    env = {"SLURMTRAIN_HEARTBEAT": str(tmp_path / "beat"), "SLURMTRAIN_BEATS": str(tmp_path / "beats")}
    said(python(code, tmp_path, **env, SLURMD_NODENAME="n1"))
    step, _, rest = (tmp_path / "beat").read_text().partition(" ")
    assert (step, sorted(json.loads(rest))) == ("5", ["at", "loss"])
    assert (tmp_path / "beats" / "n1@0").read_text().split()[0] == "5"
    said(python(code.replace("step=5", "step=Tensor()"), tmp_path, **env))
    assert (tmp_path / "beat").read_text().startswith("- {"), "it goes on"


def test_done(tmp_path: Path) -> None:
    said(python("import helper as h; h.done()", tmp_path, SLURMTRAIN_DONE_FILE=str(tmp_path / "done")))
    assert (tmp_path / "done").exists()


SAVE = """
import sys, helper as h
with h.atomic_save("ckpt/step-1", folder=sys.argv == ["-c"] and FOLDER) as path:
    target = path / "weights" if FOLDER else path
    target.write_text("new")
    print("written", flush=True)
    sys.stdin.readline() if WAIT else None
    1 / (0 if FAIL else 1)
"""


@pytest.mark.parametrize("folder", [False, True])
def test_a_save_is_there_whole_or_not_at_all(folder: bool, tmp_path: Path) -> None:
    head = f"FOLDER, WAIT, FAIL = {folder}, False, "
    final = tmp_path / "ckpt" / "step-1"
    content = final / "weights" if folder else final
    for _ in range(2):  # the second replaces the first
        said(python(head + "False\n" + SAVE, tmp_path))
        assert content.read_text() == "new"
        assert [path.name for path in final.parent.iterdir()] == ["step-1"]
    content.write_text("old")
    failed = python(head + "True\n" + SAVE, tmp_path)
    failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert content.read_text() == "old"
    assert [path.name for path in final.parent.iterdir()] == ["step-1"]


def test_a_save_that_is_killed_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "step-1").write_text("old")
    code = "FOLDER, WAIT, FAIL = False, False, False\nimport time\n" + SAVE.replace(
        "    1 /", "    time.sleep(60)\n    1 /"
    )
    process = python(code, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    process.kill()
    process.wait()
    assert (tmp_path / "ckpt" / "step-1").read_text() == "old"
    others = [path.name for path in (tmp_path / "ckpt").iterdir() if path.name != "step-1"]
    assert all(name.startswith(".") and name.endswith(".tmp") for name in others), "no checkpoint by its name"


def test_the_file_can_be_printed_to_copy_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slurmtrain.training"], capture_output=True, text=True, cwd=SOURCE.parents[1], timeout=60
    )
    assert done.stdout == SOURCE.read_text(encoding="utf-8")
    assert "import slurmtrain" not in done.stdout


def owner(run: Path, attempt: int, **values: object) -> None:
    folder = run / "attempts" / f"{attempt:03d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "owner.json").write_text(json.dumps({"job_id": "7", "submission": 0, **values}))


def test_a_process_of_an_overtaken_attempt_saves_nothing(tmp_path: Path) -> None:
    code = "import helper as h\nwith h.atomic_save('c/step-1.pt') as p: p.write_text('x')\nprint('saved')"
    env = {"SLURMTRAIN_RUN_DIR": str(tmp_path), "SLURMTRAIN_ATTEMPT": "0"}
    owner(tmp_path, 0, restart_count=1)
    owner(tmp_path, 1, restart_count=0)  # an execution that came late to its gate: it is not newer
    assert said(python(code, tmp_path, **env)) == "saved"
    (tmp_path / "c" / "step-1.pt").unlink()
    owner(tmp_path, 1, restart_count=2)
    process = python(code, tmp_path, **env)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a later attempt of this run has begun: step-1.pt is not saved" in out
    assert list((tmp_path / "c").iterdir()) == []


def test_only_rank_0_looks_for_the_stop_file_each_second(tmp_path: Path) -> None:
    """A quarter of an hour of a training, by its own clock."""
    code = """
import os, helper as h
clock, looks, real = [0.0], [], os.path.exists
h.time.monotonic = lambda: clock[0]
os.path.exists = lambda path: path == os.environ["SLURMTRAIN_STOP_FILE"] and looks.append(clock[0]) or real(path)
while clock[0] < 900:
    assert not h.should_stop()
    clock[0] += 0.1
print(len(looks))
"""
    env = {"SLURMTRAIN_RUN_ID": "r", "SLURMTRAIN_STOP_FILE": str(tmp_path / "stop")}
    looks = {rank: int(said(python(code, tmp_path, **env, RANK=rank))) for rank in ("", "0", "1", "4095")}
    assert looks[""] == looks["0"] > 800
    assert all(20 < looks[rank] < 46 for rank in ("1", "4095"))
    (tmp_path / "stop").touch()
    code = "import helper as h\nprint(h.should_stop())"
    assert said(python(code, tmp_path, **env, RANK="4095")) == "True", (
        "one that was asked before it began knows at once"
    )


def test_a_pause_that_is_announced_in_every_step_is_written_seldom(tmp_path: Path) -> None:
    code = """
import os, helper as h
clock, written, real = [0.0], [], os.replace
h.time.monotonic = lambda: clock[0]
os.replace = lambda *paths: written.append(clock[0]) or real(*paths)
def beats(steps, **values):
    written.clear()
    for step in range(steps):
        h.heartbeat(step=step, **values)
        clock[0] += 0.1
    print(len(written), end=" ")
beats(1000, pause_s=600)
beats(1)
beats(1, pause_s=1800)
beats(50, pause_s=1800)
beats(1, pause_s=60)
"""
    told = said(python(code, tmp_path, SLURMTRAIN_HEARTBEAT=str(tmp_path / "beat")))
    assert told == "10 0 1 0 1"


def test_batches_that_make_one_step_together_do_not_shorten_it(tmp_path: Path) -> None:
    code = """
import helper as h
clock = [0.0]
h.time.monotonic = lambda: clock[0]
for batch in range(40):
    h.heartbeat(step=batch // 8)
    clock[0] += 2
"""
    said(python(code, tmp_path, SLURMTRAIN_BEATS=str(tmp_path / "beats"), SLURMD_NODENAME="n1"))
    step, _at, pace, _busy = (tmp_path / "beats" / "n1@0").read_text().split()
    assert (step, float(pace)) == ("4", 16.0)


TORCH = """
import os, helper as h
from types import SimpleNamespace as Space
def device(kind, number=None): return kind if number is None else f"{kind}:{number}"
def torch(count, current, held):
    cuda = Space(device_count=lambda: count, is_initialized=lambda: current is not None,
                 current_device=lambda: current, memory_reserved=lambda number: held[number])
    return Space(device=device, cuda=cuda)
def used(served, count=8, current=0, held=(0,) * 8, bound=None):
    world = Space(bound_device_id=bound)
    distributed = Space(get_backend_config=lambda: served, get_backend=lambda: served, group=Space(WORLD=world))
    return h._device(torch(count, current, held), distributed)
"""


def test_the_ranks_of_a_node_agree_each_on_its_own_gpu(tmp_path: Path) -> None:
    """With what PyTorch tells of itself; the machines of the tests have no GPU."""
    code = """
print(used("cpu:gloo,cuda:nccl"), used("cpu:gloo,cuda:gloo"), used("gloo"), used("cpu:gloo"))
print(used("cuda:nccl", current=2), used("nccl", current=2), used("xpu:xccl"))
print(used("cuda:nccl", held=(0, 0, 0, 0, 0, 7, 0, 0)), used("cuda:nccl", held=(9, 0, 0, 0, 0, 7, 0, 0)))
print(used("cuda:nccl"), used("cuda:nccl", current=None), used("cuda:nccl", count=1, held=(0,)))
print(used("cuda:nccl", bound="cuda:6"), used("cuda:nccl", count=0, current=None))
"""
    told = said(python(TORCH + code, tmp_path, LOCAL_RANK="3")).splitlines()
    assert told == ["cpu cpu cpu cpu", "cuda:2 cuda:2 xpu", "cuda:5 cuda:0", "cuda:3 cuda:3 cuda:0", "cuda:6 cuda:0"]
