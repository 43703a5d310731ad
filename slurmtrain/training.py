"""For training code: what slurmtrain tells a training, and what a training can tell slurmtrain.

One file without dependencies, for Python 3.8 or newer: where slurmtrain is not installed, copy it beside your code with
``python -m slurmtrain.training > slurmtrain_training.py``. Outside of slurmtrain every function is harmless: nothing is
asked to stop, nothing is resumed, nothing is written but what ``atomic_save`` is told to.

    from slurmtrain.training import atomic_save, done, heartbeat, resume_from, should_stop

    start = load(resume_from()) if resume_from() else 0
    for step in range(start, steps):
        train(step)
        heartbeat(step=step)
        leave = should_stop()                   # on all ranks alike, when torch.distributed is in use
        if rank == 0 and (leave or step % 100 == 0):
            with atomic_save(f"{folder}/step-{step:06d}.pt") as path:
                torch.save(state, path)
        if leave:
            break
    else:
        done()
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_LOOK_S = 1.0  # how often rank 0 looks for the stop file, at most
_OTHERS_LOOK_S = 20.0  # the others: a file system's metadata server has better to do than thousands of looks a second
_BEAT_S = 10.0  # how often a heartbeat is written, at most
_HERE_S = 1.0  # how often a rank says on its own node where it is, at most
_LEFT_S = 86400.0  # a save that has written nothing for so long is over
_OLD = ".old-"  # what a save replaces, in its hidden folder
_HIDDEN = re.compile(r"\..+\.([0-9a-f]{8})\.(\d+)\.(\d+)\.[\w-]*\.\d+\.[0-9a-f]{16}\.tmp", re.ASCII | re.DOTALL)
_TERM_S = 1.0  # after SIGTERM: how long the companion may take to say that the whole job got it

_asked = False
_listens = False
_on_term: Any = None  # our handler of SIGTERM
_looked_at = -1e9
_beat_at = -1e9
_save_s: float | None = None  # how long the last save took
_cleared: set[str] = set()  # folders in which leftovers of saves were looked for
_pause_until = -1e9  # what the last heartbeat announced
_first: tuple[float, int | None] = (0.0, None)  # when the first step was told, and which
_here: tuple[float, int, float, str] = (-1e9, -1, 0, "-")  # said when, the step, since when, seconds per step


def active() -> bool:
    """Whether slurmtrain started this process."""
    return bool(os.environ.get("SLURMTRAIN_RUN_ID"))


def rank() -> int:
    """This process' rank, 0 where there is only one."""
    return _whole_number("RANK") or _whole_number("SLURM_PROCID")


def _whole_number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def resume_from() -> Path | None:
    """The checkpoint to start from, a file or a folder; None to begin anew."""
    text = os.environ.get("SLURMTRAIN_RESUME_FROM")
    return Path(text) if text else None


def checkpoint_dir(default: str | Path = "checkpoints") -> Path:
    """Where slurmtrain looks for checkpoints; ``default`` outside of it."""
    return Path(os.environ.get("SLURMTRAIN_CHECKPOINT_DIR") or default)


def listen() -> None:
    """Take up the stop signal; ``should_stop`` does it too. A handler that is there already is called as before."""
    global _listens  # noqa: PLW0603 - one process, one state
    if _listens or not active() or threading.current_thread() is not threading.main_thread():
        return
    _listens = True
    before = signal.getsignal(signal.SIGUSR2)

    def on_signal(number: int, frame: FrameType | None) -> None:
        global _asked  # noqa: PLW0603
        _asked = True
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGUSR2, on_signal)
    atexit.register(signal.signal, signal.SIGUSR2, signal.SIG_IGN)  # a process that leaves has no handlers in the end
    if os.environ.get("SLURMTRAIN_BEATS") and not _is_caught(signal.SIGTERM):
        _outlive_term()


def _is_caught(number: int) -> bool:
    """Whether somebody has a handler for it; Python does not know of those that libraries such as JAX's set."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        caught = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").split("SigCgt:")[1].split()[0]
        if int(caught, 16) >> (number - 1) & 1:
            return True
    return signal.getsignal(number) is not signal.SIG_DFL


def _outlive_term() -> None:
    """SIGTERM to the whole job begins the grace time of a preemption, or an end with some seconds left: time to save.

    Where it comes to the ranks alone one of them has failed, and it ends them as ever. A thread waits to learn which it
    is, for a main thread that stands in a collective runs no handler.
    """
    global _on_term
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def on_term(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(writing, b"\0")  # the number of no signal

    def in_a_child() -> None:  # it dies of SIGTERM as ever, and does not wake its rank
        if (other := signal.set_wakeup_fd(-1)) != writing:
            signal.set_wakeup_fd(other)
        if signal.getsignal(signal.SIGTERM) is on_term:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    marks, _on_term = _TermMarks(_TERM_S), on_term
    signal.signal(signal.SIGTERM, on_term)
    if (other := signal.set_wakeup_fd(writing, warn_on_full_buffer=False)) != -1:
        signal.set_wakeup_fd(other)
    os.register_at_fork(after_in_child=in_a_child)
    threading.Thread(target=_hear_term, args=(reading, on_term, marks), name="slurmtrain-term", daemon=True).start()


def _hear_term(reading: int, on_term: object, marks: _TermMarks) -> None:
    """A signal is heard at once, by its number, and as 0 when the main thread comes to run the handler.

    That may be minutes later. It is the only way where somebody else has the wakeup descriptor, or a handler that was
    set later and calls ours.
    """
    global _asked  # noqa: PLW0603
    awaited = False  # the 0 of a signal that has been dealt with
    while True:
        heard = os.read(reading, 64)
        at_once = signal.SIGTERM in heard and signal.getsignal(signal.SIGTERM) is on_term
        if at_once or (0 in heard and not awaited):
            if not marks.tell_of_this():
                _die_of_term()
            _asked = True
        if at_once or 0 in heard:
            awaited = at_once and heard.rfind(signal.SIGTERM) > heard.rfind(0)


class _TermMarks:
    """Whether SIGTERM came to the whole job: the companion, a step of its own, then leaves a mark, for it got it, too.

    Each mark is good for one signal, however late this process comes to hear of it, and for those that are heard in the
    next ``again_s`` seconds: torchrun and the like hand on what Slurm has sent to all processes already.
    """

    def __init__(self, again_s: float) -> None:
        self._again_s = again_s
        self._last, self._at = _find_term_mark(), -1e9

    def tell_of_this(self) -> bool:
        began = time.monotonic()
        while True:
            is_late = time.monotonic() - began >= _TERM_S  # before the look: others may keep the interpreter for long
            mark = _find_term_mark()
            if mark not in (0.0, self._last):
                self._last, self._at = mark, time.monotonic()
            if is_late or began - self._at <= self._again_s:  # or it came to another call of this
                return began - self._at <= self._again_s
            time.sleep(0.02)


def _find_term_mark() -> float:
    """When the node's companion got SIGTERM for the last time; 0 for never."""
    folder = os.environ.get("SLURMTRAIN_BEATS", "")
    with contextlib.suppress(OSError):
        if _is_private(folder):
            return os.stat(f"{folder}/{_node()}@term").st_mtime  # noqa: PTH116
    return 0.0


def _die_of_term() -> NoReturn:
    """As without a handler, so that Slurm sees it; Python sets handlers in the main thread alone."""
    with contextlib.suppress(Exception):
        import ctypes

        ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGTERM), ctypes.c_void_p(None))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    os._exit(128 + signal.SIGTERM)


def _prepare_workers() -> None:
    """A worker of torch's DataLoader is to outlive the SIGTERM that its rank outlives.

    Otherwise the rank would fail for the loss of it before it can save. torch sets the handler of its workers itself.
    A second one for a mark is the rank's, which ends it; torchrun's, to the group of its rank, must not come here.
    """
    handlers = sys.modules.get("torch.utils.data._utils.signal_handling")
    set_handlers = getattr(handlers, "_set_worker_signal_handlers", None)
    if set_handlers is None or set_handlers.__module__ == __name__ or not os.environ.get("SLURMTRAIN_BEATS"):
        return

    def set_all_handlers() -> None:
        set_handlers()
        if os.environ.get("TORCHELASTIC_RUN_ID"):
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
        marks = _TermMarks(0.0)
        signal.signal(signal.SIGTERM, lambda *_: marks.tell_of_this() or _die_of_term())

    handlers._set_worker_signal_handlers = set_all_handlers  # type: ignore[union-attr]


if active():
    os.register_at_fork(after_in_child=_prepare_workers)
    _prepare_workers()  # where this is a worker that was not forked


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def should_stop(*, together: bool = True) -> bool:
    """Whether to save and leave now: the time limit is near, the nodes are wanted, or a person asks for it.

    Ranks learn of it at different steps. With ``together``, and torch.distributed or jax.distributed in use, one that
    knows is enough and all ranks get the same answer: call it on every rank at the same step. It costs one small
    all-reduce.
    """
    listen()
    asked = _asked or _stop_file_is_there()
    return _any_rank(asked) if together else asked


def stop_reason() -> str | None:
    """Why: ``time_limit``, ``preempted``, ``drain``, ``maintenance``, ``user``; None while nobody asks."""
    path = os.environ.get("SLURMTRAIN_STOP_FILE")
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()[:100] or "user" if path else None
    except OSError:
        return None


def _stop_file_is_there() -> bool:
    global _looked_at, _asked  # noqa: PLW0603
    path = os.environ.get("SLURMTRAIN_STOP_FILE")
    every = _LOOK_S if rank() == 0 else _OTHERS_LOOK_S + rank() % _OTHERS_LOOK_S  # not all at once
    if path and time.monotonic() - _looked_at >= every:
        _looked_at = time.monotonic()
        _asked = _asked or os.path.exists(path)  # noqa: PTH110 - unlike Path.exists it never raises
    return _asked


def _any_rank(asked: bool) -> bool:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return _any_process_of_jax(asked)
    torch = sys.modules["torch"]
    flag = torch.tensor([1.0 if asked else 0.0], device=_device(torch, distributed))
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item() > 0)


def _device(torch: Any, distributed: Any) -> Any:
    """Of the all-reduce: the CPU where a backend serves it, else the GPU that this process computes on."""
    served = str(getattr(distributed, "get_backend_config", distributed.get_backend)())  # cpu:gloo,cuda:nccl
    kinds = [pair.partition(":")[0] for pair in served.split(",")] if ":" in served else ["cpu"]
    kinds = ["cuda"] if served == "nccl" else kinds  # PyTorch before 2.0
    if "cpu" in kinds:
        return torch.device("cpu")
    bound = getattr(distributed.group.WORLD, "bound_device_id", None)
    return bound or torch.device(kinds[0], *([_gpu(torch.cuda)] if kinds[0] == "cuda" else []))


def _gpu(cuda: Any) -> int:
    """PyTorch says 0 where nobody chose one: then the one that holds most of this process, or the local rank's."""
    count, current = cuda.device_count(), cuda.current_device() if cuda.is_initialized() else 0
    held = [cuda.memory_reserved(number) if cuda.is_initialized() else 0 for number in range(count)]
    if current or any(held):
        return int(current or held.index(max(held)))
    return (_whole_number("LOCAL_RANK") or _whole_number("SLURM_LOCALID")) % max(int(count), 1)


def _any_process_of_jax(asked: bool) -> bool:
    jax = sys.modules.get("jax")
    if jax is None or not getattr(jax.distributed, "is_initialized", bool)() or jax.process_count() == 1:
        return asked
    from jax.experimental.multihost_utils import process_allgather

    return bool(process_allgather(jax.numpy.asarray(asked)).any())


def heartbeat(step: int | None = None, *, pause_s: float = 0.0, **values: float) -> None:
    """Say that training goes on, and how far it is. Call it on every rank.

    Rank 0 writes a file on shared storage, every ten seconds at most: the step, then the rest as JSON,
    ``1200 {"at": …, "loss": …}``. ``pause_s`` announces, at once, that nothing will be heard for so long (evaluation,
    compilation, a big save); ``values`` are numbers such as ``loss``. Each rank writes its step to the memory of its
    node, too, so that one that is slower than the others can be named. Where all ranks wait for the slowest in each
    step, ``busy_s``, the seconds of the last step that this rank worked without waiting, tells who that is.
    """
    with contextlib.suppress(Exception):  # neither a full disk nor a strange number may end a training
        _beat(_as_number(int, step), pause_s or 0.0, values)


def _beat(step: int | None, pause_s: float, values: dict[str, float]) -> None:
    global _beat_at, _pause_until
    if step is not None:
        _say_here(step, values.get("busy_s"))
    path = os.environ.get("SLURMTRAIN_HEARTBEAT")
    now, clock = time.time(), time.monotonic()
    is_news = bool(pause_s) and abs(clock + pause_s - _pause_until) > _BEAT_S
    if not path or rank() != 0 or (clock - _beat_at < _BEAT_S and not is_news):
        return
    _beat_at, _pause_until = clock, clock + pause_s
    beat: dict[str, Any] = {"at": now, **({"save_s": round(_save_s, 3)} if _save_s is not None else {})}
    if step is not None and (speed := _speed(step, now)) is not None:
        beat["steps_per_s"] = speed
    numbers = {name: _as_number(float, value) for name, value in values.items()}
    beat.update({name: number for name, number in numbers.items() if number is not None})
    if pause_s:
        beat["pause_until"] = now + pause_s
    temporary = f"{path}.{os.getpid()}.tmp"
    Path(temporary).write_text(f"{'-' if step is None else step} {json.dumps(beat)}\n", encoding="utf-8")
    os.replace(temporary, path)  # noqa: PTH105


def _as_number(kind: type, value: Any) -> Any:
    """None for what is none: the rest of a heartbeat tells something without it. A tensor may raise anything."""
    with contextlib.suppress(Exception):
        return kind(value)
    return None


def _speed(step: int, now: float) -> float | None:
    """Steps per second since the first step that was told: what came before it was loading. None for that one."""
    global _first  # noqa: PLW0603
    at, first = _first
    if first is None or step < first:
        _first = (now, step)
        return None
    return round((step - first) / (now - at), 6) if step > first and now > at else None


def _say_here(step: int, busy_s: float | None) -> None:
    """``<step> <when> <seconds per step> <seconds at work>`` in a private folder in this node's memory."""
    global _here  # noqa: PLW0603
    folder, (at, before, since, pace) = os.environ.get("SLURMTRAIN_BEATS"), _here
    now = time.monotonic()
    if not folder or now - at < _HERE_S:
        return
    if 0 <= before < step:
        pace = f"{(now - since) / (step - before):.6f}"
    _here = (now, step, since if step == before else now, pace)  # several batches may make a step
    with contextlib.suppress(OSError):
        os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103
        if _is_private(folder):
            name = f"{folder}/{_node()}@{rank()}"
            busy = "-" if (seconds := _as_number(float, busy_s)) is None else f"{seconds:.6f}"
            Path(f"{name}.tmp").write_text(f"{step} {time.time():.3f} {pace} {busy}\n", encoding="ascii")
            os.replace(f"{name}.tmp", name)  # noqa: PTH105


def _is_private(folder: str) -> bool:
    """Whether it is of this user alone: /dev/shm is open to everybody."""
    with contextlib.suppress(OSError):
        info = os.lstat(folder)
        return info.st_uid == os.geteuid() and stat.S_ISDIR(info.st_mode) and not info.st_mode & 0o077
    return False


def done() -> None:
    """Say that the training is finished: the run ends well, whatever happens to this process from now on.

    Where that cannot be written down, a line on standard error says so, and exit code 0 tells the end as ever.
    """
    path = os.environ.get("SLURMTRAIN_DONE_FILE")
    try:
        if path:
            Path(path).touch()
    except OSError as exc:
        sys.stderr.write(f"slurmtrain: the end of the training cannot be noted in {path}: {exc.strerror}\n")


@contextlib.contextmanager
def atomic_save(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """A path to write a checkpoint to, which becomes ``path`` when all is on the disk, or never.

    It has the same name, in a hidden folder beside ``path``: some libraries choose the format by the ending, or append
    their own. ``folder``: a directory is made, to write files into. An old ``path`` is replaced. One process saves to a
    path; what ranks write together, like PyTorch's distributed checkpoints, is not for this. What was written is
    removed when the block raises; what a kill leaves is removed by a later launch's first save beside it, or after a
    day. Raises ``RuntimeError`` in a process that was left behind on a lost node while a later attempt of the run
    trains: its checkpoint would be taken for one of that attempt.
    """
    global _save_s  # noqa: PLW0603
    final = Path(path).absolute()
    final.parent.mkdir(parents=True, exist_ok=True)
    _clear_leftovers(final)
    hidden, began = _hidden_beside(final), time.monotonic()
    temporary = hidden / final.name
    hidden.mkdir()
    try:
        if folder:
            temporary.mkdir()
        yield temporary
        _check_written(temporary)
        _sync_all(temporary)
        if _is_overtaken():
            raise RuntimeError(f"a later attempt of this run has begun: {final.name} is not saved")
        _put(temporary, final)
        with contextlib.suppress(OSError):  # it is saved; some file systems refuse to flush a folder
            _sync(final.parent)
        _save_s = time.monotonic() - began  # the next heartbeat tells it
    finally:
        with contextlib.suppress(OSError):  # where both cannot be put in their place they are left for a later launch
            _finish(hidden)
            shutil.rmtree(hidden, ignore_errors=True)


def _hidden_beside(final: Path) -> Path:
    """``.<name>.<run>.<attempt>.<launch>.<host>.<pid>.<random>.tmp``: the pid alone is 1 in every container."""
    run, *launch = (os.environ.get(f"SLURMTRAIN_{name}", "") for name in ("RUN_ID", "ATTEMPT", "LAUNCH"))
    name = os.fsdecode(os.fsencode(final.name)[:100])  # with the rest less than the 255 bytes of a name
    host = re.sub(r"[^\w-]", "_", socket.gethostname(), flags=re.ASCII)[:30]
    numbers = ".".join(text if re.fullmatch("[0-9]{1,9}", text) else "0" for text in launch)
    words = f"{zlib.crc32(os.fsencode(run)):08x}.{numbers}.{host}.{os.getpid()}.{os.urandom(8).hex()}"
    return final.with_name(f".{name}.{words}.tmp")


def _clear_leftovers(final: Path) -> None:
    """Once in a process and folder: put in place, or remove, what killed saves left; the disk may be full of it."""
    parent = final.parent
    if str(parent) in _cleared:
        return
    _cleared.add(str(parent))
    with contextlib.suppress(OSError):
        os.utime(parent)
        now = parent.stat().st_ctime  # on the file server's clock
        for other in [path for path in parent.iterdir() if _HIDDEN.fullmatch(path.name)]:
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(other.lstat().st_mode):
                    _finish(other)
                    gone = _hidden_beside(final)
                    if _is_left(other, gone, now):
                        other.rename(gone)  # for one of the ranks that see it
                        shutil.rmtree(gone, ignore_errors=True)


def _finish(hidden: Path) -> None:
    """A save that was cut off while the old folder had been taken away and the new one was not yet in its place."""
    names = os.listdir(hidden)  # noqa: PTH208
    olds = [name for name in names if name.startswith(_OLD)]
    for new in (hidden / name for name in names if olds and name[0] != "."):
        final = hidden.parent / new.name
        if not os.path.lexists(final):
            try:
                new.rename(final)
            except OSError:
                (hidden / max(olds)).rename(final)


def _is_left(hidden: Path, mine: Path, now: float) -> bool:
    """Whether nobody writes to it any more: of an earlier launch of this run, or old."""
    theirs, ours = (_HIDDEN.sub(r"\1 \2 \3", path.name).split() for path in (hidden, mine))
    if theirs[0] == ours[0] and [int(number) for number in theirs[1:]] < [int(number) for number in ours[1:]]:
        return True
    return all(now - path.lstat().st_ctime > _LEFT_S for path in [hidden, *hidden.rglob("*")])


def _check_written(temporary: Path) -> None:
    others = sorted(path.name for path in temporary.parent.iterdir() if path.name[0] != "." and path != temporary)
    if not os.path.lexists(temporary):
        but = f", but to {others[0]}: give the path that ending" if others else ""
        raise FileNotFoundError(f"nothing was written to {temporary.name}{but}")
    if others:
        raise ValueError(
            f"{', '.join(others[:3])} beside {temporary.name} would be lost: use atomic_save(…, folder=True)"
        )


def _put(new: Path, final: Path) -> None:
    """Rename, in one step where the kernel and the file system can; otherwise ``_finish`` mends what a kill leaves."""
    for number in range(100):  # others may be saving to the same path
        try:
            new.rename(final)
            return
        except OSError as exc:
            if number and not os.path.lexists(new):  # somebody took this for a save that was killed
                return
            busy = exc.errno in (errno.ENOTEMPTY, errno.EEXIST) or final.is_symlink()
            if not busy or number == 99:
                raise
        if _exchange(new, final):
            return
        with contextlib.suppress(FileNotFoundError):
            final.rename(new.with_name(f"{_OLD}{number}"))


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths at once (Linux 3.15, not on NFS); False where that is refused."""
    with contextlib.suppress(ImportError, OSError, AttributeError, TypeError):
        import ctypes

        swap = ctypes.CDLL(None, use_errno=True).renameat2
        here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
        return bool(swap(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(flag)) == 0)
    return False


def _is_overtaken() -> bool:
    """Whether Slurm began another execution of the run after this one. False where that cannot be told."""
    attempts = Path(os.environ.get("SLURMTRAIN_RUN_DIR", "."), "attempts")
    with contextlib.suppress(KeyError, TypeError, ValueError, OSError):
        number = int(os.environ["SLURMTRAIN_ATTEMPT"])
        mine = json.loads((attempts / f"{number:03d}" / "owner.json").read_bytes())
        for later in range(number + 1, number + 20):
            other = json.loads((attempts / f"{later:03d}" / "owner.json").read_bytes())
            key = "restart_count" if str(other["job_id"]) == str(mine["job_id"]) else "submission"
            if mine[key] < other[key]:
                return True
    return False


def _sync_all(top: Path) -> None:
    """All of a checkpoint to the disk: files, then the folders with their names. Links are not followed."""
    files, folders = [top], []
    if top.is_dir() and not top.is_symlink():
        for root, inner, names in os.walk(top):
            files += [Path(root, name) for name in (*names, *inner)]
            folders.append(Path(root))
    for link in [path for path in files if path.is_symlink()]:
        _turn_to_final(link, top)
    files = [path for path in files if stat.S_ISREG(path.lstat().st_mode)]
    try:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(16) as pool:  # 10,000 one after the other take a parallel file system minutes
            list(pool.map(_sync, files))
    except RuntimeError:  # the interpreter is ending, and starts no thread any more
        for path in files:
            _sync(path)
    for path in reversed(folders):
        _sync(path)


def _turn_to_final(link: Path, top: Path) -> None:
    """A link to another file of the checkpoint by its whole path would lead nowhere after the renaming."""
    target = os.readlink(link)  # noqa: PTH115 - Python 3.8
    for way in (str(top), os.path.realpath(top)):
        if target.startswith(f"{way}{os.sep}"):
            link.unlink()
            link.symlink_to(os.path.relpath(top / target[len(way) + 1 :], link.parent))
            return


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # not for us to read again
    try:
        os.fsync(descriptor)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


# --- frameworks; each is imported only by the function that needs it


def lightning_callback() -> Any:
    """A callback for Lightning 2: saves and leaves when asked, sends heartbeats, tells the end.

    ``Trainer(callbacks=[lightning_callback()], plugins=[SLURMEnvironment(auto_requeue=False)])`` and
    ``fit(…, ckpt_path=resume_from())``. Checkpoints go to ``checkpoint_dir()`` as ``step-N.ckpt``.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    return type("SlurmtrainCallback", (_LightningHooks, Callback), {})()


class _LightningHooks:
    def __init__(self) -> None:
        self.saved: Path | None = None
        self.step = 0
        self.ended_at: float | None = None  # the batch before
        self.busy: dict[str, float] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        listen()
        _take_term_from(getattr(trainer, "_signal_connector", None))
        self.saved, self.step = None, trainer.global_step

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.ended_at = None  # its time is not the next batch's

    def on_validation_batch_end(self, trainer: Any, *_rest: Any) -> None:
        heartbeat(step=trainer.global_step, epoch=trainer.current_epoch)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if self.ended_at is not None:  # loading and forward: in backward, the first of several, ranks wait
            self.busy, self.ended_at = {"busy_s": time.monotonic() - self.ended_at}, None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_rest: Any) -> None:
        before, self.step, self.ended_at = self.step, trainer.global_step, time.monotonic()
        heartbeat(step=self.step, epoch=trainer.current_epoch, **self.busy)
        if self.step == before and trainer.accumulate_grad_batches > 1:
            return  # no checkpoint holds the gradients of half a step
        if should_stop() and self.saved is None:
            self.saved = checkpoint_dir() / f"step-{self.step}.ckpt"
            trainer.save_checkpoint(self.saved)
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None  # would be waited for
            trainer.should_stop = True
            trainer.limit_val_batches = 0

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        if self.saved is None:
            done()
        else:  # ModelCheckpoint has saved as if the epoch were over: ours is the newest
            time.sleep(_HERE_S)  # file systems may tell times in whole seconds
            with contextlib.suppress(OSError):
                os.utime(self.saved)


def _take_term_from(connector: Any) -> None:
    """Lightning leaves at the end of the batch in which SIGTERM came, whether anything was saved or not.

    Its handler gives way to ours, unless the training has one of its own.
    """
    handlers = getattr(signal.getsignal(signal.SIGTERM), "signal_handlers", [])
    theirs = [one for one in handlers if getattr(one, "__self__", None) is connector]
    if connector is None or not theirs or not _listens or not os.environ.get("SLURMTRAIN_BEATS"):
        return
    if all(one in theirs or one is _on_term for one in handlers):
        signal.signal(signal.SIGTERM, _on_term) if _on_term else _outlive_term()


def trainer_callback() -> Any:
    """A callback for the Hugging Face Trainer: saves and leaves when asked, sends heartbeats, tells the end.

    ``Trainer(…, callbacks=[trainer_callback()])`` with ``output_dir=str(checkpoint_dir())``, and
    ``trainer.train(resume_from_checkpoint=str(resume_from() or "") or None)``; ``checkpoint.pattern: checkpoint-*``.
    """
    from transformers import TrainerCallback

    class SlurmtrainCallback(TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            listen()

        def on_substep_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            heartbeat(step=state.global_step, epoch=float(state.epoch or 0.0))

        on_prediction_step = on_substep_end  # evaluation is no silence either

        def on_step_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> Any:
            self.on_substep_end(args, state, control)
            if should_stop():
                self.left = control.should_save = control.should_training_stop = True
                control.should_evaluate = False
            return control

        def on_train_end(self, args: Any, state: Any, control: Any, **_rest: Any) -> None:
            if state.is_world_process_zero and (not self.left or state.global_step >= state.max_steps):
                done()

    return SlurmtrainCallback()


def leave_accelerate(accelerator: Any, step: int) -> bool:
    """For a loop with accelerate: whether to leave after this step; the state has then been saved.

    ``if leave_accelerate(accelerator, step): break``, on every process. ``accelerator.load_state(resume_from())`` loads
    it.
    """
    heartbeat(step=step)
    if not accelerator.sync_gradients or not should_stop():  # within a step that several batches make
        return False
    accelerator.save_state(str(checkpoint_dir() / f"step-{step}"))
    return True


if __name__ == "__main__":
    sys.stdout.write(Path(__file__).read_text(encoding="utf-8"))
