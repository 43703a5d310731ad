"""SIGTERM: to the whole job it begins a grace time, to the ranks alone it ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from training_process import python, said

WAIT = """
import time
until = time.monotonic() + 60
while not h.should_stop() and time.monotonic() < until: time.sleep(0.02)
print("leaves", flush=True)
"""
IN_A_COLLECTIVE = """
import hashlib
hashlib.pbkdf2_hmac("sha256", b"a", b"b", 2_000_000_000)  # lets other threads run, but no handler
"""
WITH_A_LOOP = """
import asyncio
async def wait():
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)  # takes the wakeup descriptor
    print("ready", flush=True)
    while not h.should_stop(): await asyncio.sleep(0.02)
    print("leaves", flush=True)
asyncio.run(wait())
"""


IN_C = """
import ctypes, time
ctypes.{}(None).system(b"sleep 3")  # waits on when a signal comes
time.sleep(2)
print("lives", h.should_stop(), flush=True)
"""


def listener(
    tmp_path: Path, rest: str, before: str = "", listen: str = "h.listen()", **more: str
) -> subprocess.Popen[str]:
    """A rank that has begun to listen, and the folder in which its node's companion leaves the mark."""
    beats = tmp_path / "beats"
    beats.mkdir(mode=0o700, exist_ok=True)
    ready = "" if "ready" in before + rest else "print('ready', flush=True)\n"
    code = f"import signal, os, helper as h\n{before}\n{listen}\n{ready}{rest}"
    env = {"SLURMTRAIN_RUN_ID": "r", "SLURMTRAIN_BEATS": str(beats), "SLURMD_NODENAME": "n1", **more}
    process = python(code, tmp_path, **env)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("rest", [WAIT, WITH_A_LOOP], ids=["loop", "asyncio"])
def test_term_to_the_whole_job_is_a_wish_to_save_and_leave(tmp_path: Path, rest: str) -> None:
    process = listener(tmp_path, rest)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    (tmp_path / "beats/n1@term").touch()
    assert said(process) == "leaves"


@pytest.mark.parametrize("library", ["CDLL", "PyDLL"], ids=["other threads run", "nobody else runs"])
def test_a_main_thread_that_hears_of_it_late_saves_all_the_same(tmp_path: Path, library: str) -> None:
    """In a step that takes long, or in an extension that keeps the interpreter to itself."""
    process = listener(tmp_path, IN_C.format(library))
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    (tmp_path / "beats/n1@term").touch()
    assert said(process) == "lives True"


def test_what_is_handed_on_is_outlived_and_a_later_one_to_the_ranks_alone_is_not(tmp_path: Path) -> None:
    """torchrun sends its ranks what Slurm has sent to all. A rank that fails in the grace time ends the others."""
    process = listener(tmp_path, "import time\ntime.sleep(60)")
    (tmp_path / "beats/n1@term").touch()
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("rest", [WAIT, WITH_A_LOOP, IN_A_COLLECTIVE], ids=["loop", "asyncio", "collective"])
@pytest.mark.parametrize("mark", ["", "n2@term", "old"])
def test_term_to_the_ranks_alone_ends_them_as_ever(tmp_path: Path, rest: str, mark: str) -> None:
    """``old``: of a time before this process listened."""
    if mark:
        (tmp_path / "beats").mkdir(mode=0o700)
        (tmp_path / "beats" / {"old": "n1@term"}.get(mark, mark)).touch()
    process = listener(tmp_path, rest)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


def test_a_mark_that_somebody_else_could_have_left_is_not_believed(tmp_path: Path) -> None:
    process = listener(tmp_path, WAIT)
    (tmp_path / "beats/n1@term").touch()
    (tmp_path / "beats").chmod(0o777)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == -signal.SIGTERM


def test_a_handler_of_ones_own_stays(tmp_path: Path) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), os._exit(5)))"
    process = listener(tmp_path, WAIT, own)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert (process.wait(timeout=30), process.stdout.read()) == (5, "mine\n")


@pytest.mark.parametrize(("calls_on", "ends"), [(False, 0), (True, -signal.SIGTERM)])
def test_a_handler_that_is_set_later_decides(tmp_path: Path, calls_on: bool, ends: int) -> None:
    own = f"""
import time
before = signal.getsignal(signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *told: (print("mine", flush=True), {calls_on} and before(*told)))
print("ready", flush=True)
time.sleep(3)
"""
    process = listener(tmp_path, own)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert (out, process.returncode) == ("mine\n", ends)


def test_a_handler_that_a_library_has_set_stays(tmp_path: Path) -> None:
    """JAX's is set in C, where Python does not see it."""
    own = (
        "import ctypes\nlibrary = ctypes.CDLL(None)\n"
        "library.signal(ctypes.c_int(15), ctypes.cast(library.abs, ctypes.c_void_p))  # does nothing\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    )
    process = listener(tmp_path, "time.sleep(2)\nprint('lives', h.should_stop(), flush=True)", f"import time\n{own}")
    process.send_signal(signal.SIGTERM)
    assert said(process) == "lives False"


CHILDREN = """
import subprocess, multiprocessing as mp, time
forked = mp.get_context("fork").Process(target=time.sleep, args=(60,))
forked.start()
run = subprocess.Popen(["sleep", "60"])
time.sleep(0.2)
forked.terminate(); run.terminate()
forked.join(); run.wait()
print(forked.exitcode, run.returncode, flush=True)
time.sleep(1.5)
print("alive", h.should_stop(), flush=True)
"""


def test_children_die_of_term_as_ever_and_do_not_wake_their_rank(tmp_path: Path) -> None:
    assert said(listener(tmp_path, CHILDREN)) == "-15 -15\nalive False"


WORKER = """
import multiprocessing, os, sys, time, types
torch = types.ModuleType("torch")  # what the helper knows of torch
torch._set_worker_signal_handlers = lambda: signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
sys.modules["torch.utils.data._utils.signal_handling"] = torch
def work():
    torch._set_worker_signal_handlers()
    print(f"ready\\n{os.getpid()}", flush=True)
    while True: time.sleep(0.02)
worker = multiprocessing.get_context("fork").Process(target=work)
worker.start()
while worker.is_alive(): time.sleep(0.02)
print(worker.exitcode, flush=True)
"""


@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_a_data_loaders_worker_outlives_what_its_rank_outlives(tmp_path: Path, launcher: str) -> None:
    """torchrun hands the signal on to the group of its rank; another one is of the rank, which ends its worker."""
    more = {"TORCHELASTIC_RUN_ID": "x"} if launcher == "torchrun" else {}
    rank = listener(tmp_path, WORKER, **more)
    assert rank.stdout is not None
    worker = int(rank.stdout.readline())
    assert (os.getpgid(worker) == os.getpgid(rank.pid)) == (launcher == "srun")
    os.kill(worker, signal.SIGTERM)
    (tmp_path / "beats/n1@term").touch()
    with pytest.raises(subprocess.TimeoutExpired):
        rank.wait(2)
    os.kill(worker, signal.SIGTERM)
    assert said(rank) == "-15"


# As Lightning 2 composes what is called at SIGTERM: `trainer/connectors/signal_connector.py`.
LIGHTNING = """
class Compose:
    def __init__(self, handlers): self.signal_handlers = handlers
    def __call__(self, *told): [one(*told) for one in self.signal_handlers]
class Connector:
    def notify(self, *_told): print("Received SIGTERM", flush=True)
def mine(*_told): print("mine", flush=True)
connector, hooks = Connector(), h._LightningHooks()
trainer = type("Trainer", (), {"_signal_connector": connector, "global_step": 0})
def begin():
    more = [one for one in (signal.getsignal(signal.SIGTERM),) if callable(one)]
    signal.signal(signal.SIGTERM, Compose([connector.notify, *more]))
    hooks.on_train_start(trainer, None)
    print("ready", flush=True)
"""


@pytest.mark.parametrize("before", ["", "h.listen()", "signal.signal(signal.SIGTERM, mine)"])
@pytest.mark.parametrize("whole", [True, False])
def test_lightnings_handler_gives_way_for_it_would_leave_before_anything_is_saved(
    tmp_path: Path, before: str, whole: bool
) -> None:
    """Unless the training has one of its own, too: then it is the training that decides."""
    own = "mine" in before
    rest = f"{before}\nbegin()\n" + (WAIT.replace("60", "2") if own else WAIT)
    process = listener(tmp_path, rest, LIGHTNING, listen="")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    if whole:
        (tmp_path / "beats/n1@term").touch()
    out, _ = process.communicate(timeout=30)
    if own:
        assert (out, process.returncode) == ("Received SIGTERM\nmine\nleaves\n", 0)
    else:
        assert (out, process.returncode) == (("leaves\n", 0) if whole else ("", -signal.SIGTERM))
