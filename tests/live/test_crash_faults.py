"""The live crash test's checks find a fault that is built in on purpose: a watcher that acts without looking."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack import kill, steady
from cluster import Cluster, wait_until
from crash_checks import check_run
from crash_plan import Plans, start_watcher
from programs.place import assert_whole, place_programs
from runs import submit

LOOKS = (
    ("recover.py", "    if any(not came_before(", "    if False and any(not came_before("),
    ("act.py", "if record is None or not _may_requeue(record, owner):", "if record is None:"),
)


def blind_copy(cluster: Cluster, folder: Path) -> Path:
    """A copy of the installed package whose watcher requeues whatever it had seen before; for PYTHONPATH."""
    (installed,) = Path(cluster.facts["venv"]).glob("lib/python3*/site-packages/slurmtrain")
    shutil.copytree(installed, folder / "slurmtrain")
    for name, text, blind in LOOKS:
        path = folder / "slurmtrain" / "ops" / name
        before = path.read_text()
        assert before.count(text) == 1, f"{name} has changed: the fault is to be built in anew"
        path.write_text(before.replace(text, blind))
    folder.chmod(0o755)
    return folder


@pytest.mark.native_only
@pytest.mark.timeout(600)
@pytest.mark.parametrize("blind", [False, True], ids=["looks", "blind"])
def test_a_frozen_watcher_that_does_not_look_again_is_found(cluster: Cluster, store: Path, blind: bool) -> None:
    """It is frozen after it has seen the dead job; another watcher requeues it meanwhile, and the job runs again."""
    plans = Plans(store, place_programs(store) / "unreliable.sh")
    run = submit(cluster, store, steady(store, 400, "--tell-steps"), nodes=1, retry={"delay_s": 0})
    env = {"PYTHONPATH": str(blind_copy(cluster, store / "blind"))} if blind else {}
    with frozen_watcher(cluster, plans, "late", env) as late, frozen_watcher(cluster, plans, "early", {}) as early:
        run.wait_step(5)
        kill(run, "shell")
        run.wait_slurm("FAILED")
        for name in ("late", "early"):
            (plans.folder / name / "go").touch()
        early.send_signal(signal.SIGCONT)
        assert early.wait(120) == 0
        run.wait_started(2, timeout_s=120)
        late.send_signal(signal.SIGCONT)
        assert late.wait(120) == 0
    run.wait_state("Completed", timeout_s=180)
    assert_whole(run.checkpoints, 400)
    problems = check_run(run, None)
    assert bool(problems) == blind, problems
    assert len(run.starts()) == (3 if blind else 2)
    assert not blind or "second requeue" in problems[0]


@contextmanager
def frozen_watcher(cluster: Cluster, plans: Plans, name: str, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A watcher that looks once and is frozen while it asks Slurm; it has the answer of the moment of ``go``."""
    plan = plans.make(name, random.Random(1), 0, "", often=0.0)
    (plan / "watcher-1").write_text("freeze\n")
    store = plans.folder.parent
    watcher = start_watcher(cluster, store, {**plans.environment(cluster.user_env()["PATH"], plan), **env}, "--once")
    try:
        wait_until(lambda: _is_stopped(watcher.pid), 120, f"the watcher {name} is frozen")
        (store / "watch.lease").unlink()
        yield watcher
    finally:
        watcher.kill()
        watcher.wait()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
