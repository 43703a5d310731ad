"""``atomic_save`` where it is hard: killed at every point, with others beside it, where flushing is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmtrain import training
from slurmtrain.agent.resume import choose_checkpoint
from slurmtrain.checkpoints.cut_saves import finish_cut_saves
from slurmtrain.checkpoints.find import find_all
from slurmtrain.core.spec import Checkpoint
from slurmtrain.store.rundir import RunDir

HELPER = Path(training.__file__).parent

# Each child saves over the old checkpoint, and is killed by itself at the n-th line of the helper; until one survives.
KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
sys.path.insert(0, HELPER)
import training as h
if not EXCHANGE:
    h._exchange = lambda one, other: False          # as on NFS
final = Path("c/step-5")

def save(text):
    with h.atomic_save(final, folder=True) as path:
        (path / "inner").mkdir()
        (path / "inner" / "weights").write_text(text)

def child(at):
    left = [at]
    def trace(frame, event, arg):
        if frame.f_code.co_filename != h.__file__:
            return None
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)
    save("new")
    sys.settrace(None)
    os._exit(0)

found = []
for at in range(1, 5000):
    shutil.rmtree("c", ignore_errors=True)
    save("old")
    h._cleared.clear()
    pid = os.fork()
    if not pid:
        child(at)
    _, status = os.waitpid(pid, 0)
    missing = not final.exists()
    if MEND and missing:
        with h.atomic_save("c/step-6", folder=True) as path:
            (path / "weights").write_text("6")
    found.append([missing, (final / "inner" / "weights").read_text() if final.exists() else None])
    if not status:
        break
print(json.dumps(found))
"""


def run(code: str, folder: Path, **env: str) -> str:
    """The output of a training that has nothing but the helper."""
    head = f"import sys\nHELPER = {str(HELPER)!r}\nsys.path.insert(0, HELPER)\n"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK"))}
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        cwd=folder,
        env={**kept, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("exchange", [True, False])
def test_a_folder_is_there_whole_wherever_its_replacement_is_killed(exchange: bool, tmp_path: Path) -> None:
    states = json.loads(run(f"EXCHANGE, MEND = {exchange}, True\n{KILLED}", tmp_path))
    assert len(states) > 40, "it was killed at each line of the helper"
    assert {text for _, text in states} == {"old", "new"}
    assert states[0][1] == "old"
    assert states[-1][1] == "new"
    assert any(missing for missing, _ in states) != exchange, "for a moment there is none where they cannot be swapped"


def test_the_next_launch_finds_a_folder_that_was_being_replaced(tmp_path: Path) -> None:
    left = tmp_path / "c" / ".step-5.00000000.0.0.n1.1.0123456789abcdef.tmp"
    for name, text in (("step-5", "new"), (".old-0", "old")):
        (left / name).mkdir(parents=True)
        (left / name / "weights").write_text(text)
    (tmp_path / "c" / ".step-6.00000000.0.0.n1.1.0123456789abcdef.tmp" / "step-6").mkdir(parents=True)
    checkpoint = Checkpoint(dir="c", pattern="step-*")
    assert find_all(tmp_path, checkpoint) == []
    assert finish_cut_saves(tmp_path / "c", "step-*") == [tmp_path / "c" / "step-5"]
    assert [found.path.name for found in find_all(tmp_path, checkpoint)] == ["step-5"], "step-6 was not whole"
    assert (tmp_path / "c" / "step-5" / "weights").read_text() == "new"
    assert finish_cut_saves(tmp_path / "c", "step-*") == []
    assert finish_cut_saves(tmp_path / "none", "*/step-*") == []


def test_a_launch_resumes_from_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = tmp_path / "checkpoints" / "a" / ".step-5.pt.00000000.0.0.n1.1.0123456789abcdef.tmp"
    for name in ("step-5.pt", ".old-0"):
        (left / name).mkdir(parents=True)
        (left / name / "weights").write_text("x")
    found = choose_checkpoint(RunDir(tmp_path), Checkpoint(pattern="*/step-*"))
    assert found is not None
    assert found.path == tmp_path / "checkpoints" / "a" / "step-5.pt"
    assert "step-5.pt was whole, and its save was killed before it had its name" in capsys.readouterr().out


def test_all_ranks_of_all_containers_may_save_to_one_path(tmp_path: Path) -> None:
    """Each is process 1 of its own host: for them all the pid is the same."""
    code = """
import os, helper_pid
import training as h
for n in range(15):
    for folder in (False, True):
        with h.atomic_save("c/%s-5" % ("folder" if folder else "file"), folder=folder) as path:
            for name in ("a", "b") if folder else (None,):
                with open(path / name if name else path, "w") as stream:
                    for _ in range(200):
                        stream.write(sys.argv[1] * 100)
                        stream.flush()
"""
    (tmp_path / "helper_pid.py").write_text("import os\nos.getpid = lambda: 1\n")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", f"import sys\nsys.path[:0] = [{str(HELPER)!r}, '.']\n{code}", letter],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        )
        for letter in "abcd"
    ]  # fmt: skip
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors
    folder = tmp_path / "c"
    assert sorted(path.name for path in folder.iterdir()) == ["file-5", "folder-5"]
    texts = [path.read_text() for path in (folder / "file-5", folder / "folder-5" / "a", folder / "folder-5" / "b")]
    assert [(len(text), len(set(text))) for text in texts] == [(20000, 1)] * 3, "bytes of one rank alone"
    assert texts[1] == texts[2], "the folder is of one rank alone"


LEAVE = """
import os, training as h
with h.atomic_save("c/step-%s.pt" % sys.argv[1]) as path:
    path.write_text("half")
    os._exit(0)
"""
SAVE = "import training as h\nwith h.atomic_save('c/step-9.pt') as path: path.write_text('x')"


def leave(folder: Path, **env: str) -> str:
    before = set((folder / "c").iterdir()) if (folder / "c").exists() else set()
    run(LEAVE.replace("sys.argv[1]", "7"), folder, **env)
    (left,) = set((folder / "c").iterdir()) - before
    return left.name


def test_what_a_killed_save_left_is_removed_by_a_later_launch_and_by_nobody_before(tmp_path: Path) -> None:
    env = {"SLURMTRAIN_RUN_ID": "r1", "SLURMTRAIN_ATTEMPT": "1"}
    later = leave(tmp_path, **{**env, "SLURMTRAIN_ATTEMPT": "2"}, SLURMTRAIN_LAUNCH="0")
    same = leave(tmp_path, **env, SLURMTRAIN_LAUNCH="1")
    other = leave(tmp_path, **{**env, "SLURMTRAIN_RUN_ID": "r2"}, SLURMTRAIN_LAUNCH="0")
    alone = leave(tmp_path)
    old = leave(tmp_path, **env, SLURMTRAIN_LAUNCH="0")
    (tmp_path / "c" / ".mine.tmp").mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    link = tmp_path / "c" / old.replace("step-7", "step-8")
    link.symlink_to(tmp_path / "precious")
    run(SAVE, tmp_path, **env, SLURMTRAIN_LAUNCH="1")
    kept = {same, later, other, alone, ".mine.tmp", link.name, "step-9.pt"}
    assert {path.name for path in (tmp_path / "c").iterdir()} == kept
    assert (tmp_path / "precious" / "file").exists()
    run(SAVE.replace("as h\n", "as h, time\nh._LEFT_S = 1.0; time.sleep(1.5)\n"), tmp_path)
    assert {path.name for path in (tmp_path / "c").iterdir()} == {".mine.tmp", link.name, "step-9.pt"}


def test_a_save_that_goes_on_is_not_taken_for_left(tmp_path: Path) -> None:
    """It is old, but a file of it has just been written."""
    code = """
import training as h, subprocess, time
h._LEFT_S = 1.0
with h.atomic_save("c/step-7", folder=True) as path:
    (path / "a").write_text("x")
    time.sleep(1.5)
    (path / "a").write_text("xy")
    h._cleared.clear()
    with h.atomic_save("c/step-8.pt") as other: other.write_text("x")
"""
    run(code, tmp_path)
    assert (tmp_path / "c" / "step-7" / "a").read_text() == "xy"


def test_half_a_save_is_no_checkpoint_by_any_pattern(tmp_path: Path) -> None:
    leave(tmp_path)
    for pattern in ("*", "step-*", "*.pt", "**/*.pt", "*/*.pt", "*/*", "**/*"):
        assert find_all(tmp_path, Checkpoint(dir="c", pattern=pattern)) == [], pattern
    code = "import glob\nprint(glob.glob('c/*') + glob.glob('c/**/*.pt', recursive=True) + list(HERE.glob('c/*.pt')))"
    assert run(f"from pathlib import Path\nHERE = Path()\n{code}", tmp_path) == "[]\n"


def test_a_long_name_can_be_saved(tmp_path: Path) -> None:
    for name in ("ü" * 120 + ".pt", ".hidden", "with space\n.pt"):
        with training.atomic_save(tmp_path / name) as path:
            path.write_text("x")
        assert (tmp_path / name).read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 3


def test_everything_of_a_folder_is_flushed_and_nothing_outside_of_it(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    code = """
import os, training as h
flushed, real = [], os.fsync
def fsync(descriptor):
    flushed.append(os.readlink(f"/proc/self/fd/{descriptor}").partition("/c/")[2])
    real(descriptor)
os.fsync = fsync
with h.atomic_save("c/step-5", folder=True) as path:
    (path / "inner" / "deep").mkdir(parents=True)
    (path / "inner" / "deep" / "weights").write_text("x")
    for n in range(MANY):
        (path / "inner" / str(n)).write_text("x")
    (path / "inner" / "outside").symlink_to(os.path.abspath("outside"))
    (path / "loop").symlink_to(path)
    (path / "nowhere").symlink_to("/none")
    (path / "last").symlink_to(path / "inner" / "deep")
    os.mkfifo(path / "pipe")
print(*sorted(name.partition("tmp/")[2] for name in flushed), sep="\\n")
"""
    for many in (2, 200):
        flushed = run(code.replace("MANY", str(many)), tmp_path).split("\n")
        names = [f"step-5/inner/{n}" for n in range(many)]
        folders = ["step-5", "step-5/inner", "step-5/inner/deep"]
        assert flushed[1:-1] == sorted([*folders, *names, "step-5/inner/deep/weights"])
    assert (tmp_path / "c" / "step-5" / "last" / "weights").read_text() == "x", "the link came along"


REFUSES = """
import errno, os, training as h
real = os.fsync
def fsync(descriptor):
    is_folder = os.path.isdir(f"/proc/self/fd/{descriptor}")
    parent = os.readlink(f"/proc/self/fd/{descriptor}").endswith("/c")
    if WHAT == "all" or (WHAT == "folders" and is_folder) or (WHAT == "parent" and parent):
        raise OSError(ERROR, os.strerror(ERROR))
    real(descriptor)
os.fsync = fsync
with h.atomic_save("c/step-5", folder=True) as path:
    (path / "weights").write_text("x")
with h.atomic_save("c/step-6.pt") as path:
    path.write_text("x")
"""


@pytest.mark.parametrize(("what", "error"), [("all", "EINVAL"), ("folders", "ENOTSUP"), ("parent", "EIO")])
def test_a_file_system_may_refuse_to_flush(what: str, error: str, tmp_path: Path) -> None:
    run(f"import errno\nWHAT, ERROR = {what!r}, errno.{error}\n{REFUSES}", tmp_path)
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-5", "step-6.pt"]


def test_what_cannot_be_written_to_the_disk_is_not_saved(tmp_path: Path) -> None:
    code = (
        f"import errno\nWHAT, ERROR = 'all', errno.EIO\ntry:\n    exec({REFUSES!r})\nexcept OSError as exc: print(exc)"
    )
    assert "Input/output error" in run(code, tmp_path)
    assert list((tmp_path / "c").iterdir()) == []


def test_what_would_be_lost_is_told(tmp_path: Path) -> None:
    def fails(write: Callable[[Path], object]) -> str:
        with (
            pytest.raises((FileNotFoundError, ValueError)) as caught,
            training.atomic_save(tmp_path / "step-5") as path,
        ):
            write(path)
        assert list(tmp_path.iterdir()) == []
        return str(caught.value)

    assert fails(lambda path: None) == "nothing was written to step-5"
    told = fails(lambda path: path.with_name("step-5.npy").write_text("x"))
    assert told == "nothing was written to step-5, but to step-5.npy: give the path that ending"
    told = fails(lambda path: [path.with_name(name).write_text("x") for name in ("step-5", "step-5.data")])
    assert told == "step-5.data beside step-5 would be lost: use atomic_save(…, folder=True)"


def test_a_link_is_replaced_and_what_it_leads_to_is_left(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "weights").write_text("old")
    (tmp_path / "last").symlink_to("real")
    for _ in range(2):
        with training.atomic_save(tmp_path / "last", folder=True) as path:
            (path / "weights").write_text("new")
    assert (tmp_path / "real" / "weights").read_text() == "old"
    assert not (tmp_path / "last").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last", "real"]
    for kind, other in ((True, tmp_path / "file"), (False, tmp_path / "real")):
        (tmp_path / "file").write_text("old")
        with pytest.raises(OSError, match=r"irectory"), training.atomic_save(other, folder=kind) as path:
            (path / "weights" if kind else path).write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "last", "real"]


def test_room_is_made_before_anything_is_written(tmp_path: Path) -> None:
    """The disk is full of what the launch before left: no folder can be made until that is gone."""
    env = {"SLURMTRAIN_RUN_ID": "r1", "SLURMTRAIN_ATTEMPT": "0"}
    leave(tmp_path, **env, SLURMTRAIN_LAUNCH="0")
    code = """
import errno, os, pathlib
real = pathlib.Path.mkdir
def mkdir(path, *rest, **more):
    if path.name.startswith(".") and os.listdir("c"):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    real(path, *rest, **more)
pathlib.Path.mkdir = mkdir
"""
    run(code + SAVE, tmp_path, **env, SLURMTRAIN_LAUNCH="1")
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-9.pt"]


INTERRUPTED = """
import json, shutil, training as h
from pathlib import Path
h._exchange = lambda one, other: False  # as on NFS
final = Path("c/step-5")

def save(text):
    with h.atomic_save(final, folder=True) as path:
        (path / "weights").write_text(text)

def interrupt_at(line):
    left = [line]
    def trace(frame, event, arg):
        if frame.f_code.co_filename != h.__file__:
            return None
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return trace
    return trace

found = []
for line in range(1, 5000):
    shutil.rmtree("c", ignore_errors=True)
    save("old")
    sys.settrace(interrupt_at(line))
    try:
        save("new")
        break
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    h._cleared.clear()
    with h.atomic_save("c/step-6.pt") as path:
        path.write_text("6")
    found.append((final / "weights").read_text() if final.exists() else None)
print(json.dumps(found))
"""


def test_an_exception_in_the_moment_of_the_replacement_loses_nothing(tmp_path: Path) -> None:
    """Ctrl-C, or a handler of a signal that raises."""
    assert set(json.loads(run(INTERRUPTED, tmp_path))) == {"old", "new"}


def test_what_cannot_be_put_in_its_place_leaves_the_old_one_there(tmp_path: Path) -> None:
    code = """
import errno, os, training as h
from pathlib import Path
h._exchange = lambda one, other: False
def save(text):
    with h.atomic_save("c/step-5", folder=True) as path:
        (path / "weights").write_text(text)
save("old")
real, moved = Path.rename, []
def rename(self, target):
    if moved and target.name == "step-5" and self.name == "step-5":
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    moved.extend([1] if target.name.startswith(".old-") else [])
    return real(self, target)
Path.rename = rename
try: save("new")
except OSError as exc: print(exc)
"""
    assert "Input/output error" in run(code, tmp_path)
    assert (tmp_path / "c" / "step-5" / "weights").read_text() == "old"
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-5"]


def test_a_folder_takes_the_place_of_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    """To a checkpoint that has been removed since."""
    (tmp_path / "last").symlink_to("step-5")
    with training.atomic_save(tmp_path / "last", folder=True) as path:
        (path / "weights").write_text("x")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert (tmp_path / "last" / "weights").read_text() == "x"
