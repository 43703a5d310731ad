"""``prune`` over real runs on a small store: what goes, what stays, kills in the middle, and that the rest works.

The floor is a week, so the command is run with a clock that is weeks ahead; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = [pytest.mark.native_only, pytest.mark.timeout(900)]  # the file system is mounted on the one machine

DAY = 86400
# The command with another clock, which is killed before its n-th change of a name or its n-th write to the disk.
LATER = """
import os, sys, time
ahead, left = float(sys.argv.pop(1)), [int(sys.argv.pop(1))]
real = time.time
time.time = lambda: real() + ahead
def counted(call):
    def act(*args, **more):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), 9)
        return call(*args, **more)
    return act
for name in ("rename", "replace", "unlink", "rmdir", "fsync"):
    setattr(os, name, counted(getattr(os, name)))
from slurmtrain.cli.main import main
main()
"""
KEPT = ("agent.pyz", "plan.json", "spec.yaml")


@dataclass
class Runs:
    """One run of each kind, on a store of its own."""

    store: Path
    done: LiveRun  # restarted in place, requeued, finished
    failed: LiveRun
    held: LiveRun
    running: LiveRun  # in its second attempt
    bare: LiveRun  # finished, without a checkpoint

    @property
    def ended(self) -> tuple[LiveRun, ...]:
        return self.done, self.failed, self.bare


@pytest.fixture
def small(store: Path) -> Iterator[Path]:
    """A store of 48 MiB."""
    path, owner = store / "small", store.stat()
    path.mkdir()
    options = f"size=48m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, timeout=30)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)


def _start(cluster: Cluster, small: Path) -> Runs:
    """All at once; returns when those that end have ended and the one that runs is in its second attempt."""

    def train(name: str, *words: str, in_place: int = 0, requeues: int = 0) -> LiveRun:
        retry = {"in_place": in_place, "requeues": requeues, "delay_s": 0}
        command = trainer(small, "--pace", "0.05", "--checkpoint-every", "10", *words)
        return submit(cluster, small, command, name=name, nodes=1, retry=retry)

    again = ("--fail", "nccl_timeout", "--fail-at", "15", "--fail-further", "15")
    runs = Runs(
        small,
        train("done", "--steps", "60", "--fail-launches", "2", *again, in_place=1, requeues=1),
        train("failed", "--fail", "import_error", "--fail-launches", "-1", "--fail-at", "25"),
        train("held", "--fail", "nccl_timeout", "--fail-launches", "-1", "--fail-at", "25", in_place=1),
        train("running", "--steps", "100000", "--fail-launches", "1", *again, requeues=1),
        submit(cluster, small, ["/bin/echo", "nothing to save"], name="bare", nodes=1),
    )
    runs.done.wait_state("Completed")
    runs.failed.wait_state("Failed")
    runs.held.wait_state("Held")
    runs.bare.wait_state("Completed")
    wait_until(lambda: runs.running.starts()[-1:] == ["1.0"], 90, "the second attempt of the run that goes on")
    for run in (*runs.ended, runs.held):
        cluster.wait_gone(run.job_id)
    return runs


def _prune(
    cluster: Cluster, store: Path, days: float, *words: str, kill_at: int = 0
) -> subprocess.CompletedProcess[str]:
    python = f"{cluster.facts['venv']}/bin/python"
    whole = [python, "-c", LATER, str(days * DAY), str(kill_at), "prune", *words]
    return cluster.as_user(*whole, env={"SLURMTRAIN_STORE": str(store)}, cwd=store, timeout_s=120)


def _prune_with_kills(cluster: Cluster, store: Path, days: float, *words: str) -> Iterator[None]:
    """Killed at one change after the other, and called again until a call comes through; yields after each kill."""
    kills, kill_at = 0, 2
    while (done := _prune(cluster, store, days, *words, kill_at=kill_at)).returncode != 0:
        assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
        yield
        kills, kill_at = kills + 1, kill_at + 4
    assert kills >= 3, f"it changes more than that: {done.stdout}"


def _rows(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["run_id"]: row for row in json.loads(done.stdout)["runs"]}


def _files(run: LiveRun) -> list[Path]:
    """slurmtrain's own: without checkpoints."""
    return [
        path for path in run.path.rglob("*") if path.is_file() and "checkpoints" not in path.relative_to(run.path).parts
    ]


def _content(run: LiveRun) -> dict[str, bytes]:
    found = [path for path in run.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in found}


def _free(store: Path) -> int:
    found = os.statvfs(store)
    return found.f_bavail * found.f_frsize


def _status(run: LiveRun) -> dict[str, Any]:
    """But for where the scene lies: joining the files moves it into the archive."""
    row = run.status()
    return {**row, "scene": row["scene"] and {**row["scene"], "path": None}}


def _told(run: LiveRun) -> dict[str, Any]:
    """What the commands say of a run that its small files must not change."""
    explained = json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout)
    kept = ("state", "headline", "diagnosis", "evidence", "last_decision", "budgets", "launches", "story", "findings")
    told: dict[str, Any] = {key: explained[key] for key in kept}
    told["findings"] = [{**row, "path": None} for row in told["findings"]]
    told["story"] = [{**row, "path": None} for row in told["story"]]
    for words in ([], ["--attempt", "0"], ["--attempt", "0", "--launch", "0"], ["--rank", "0"], ["--grep", "step 2"]):
        told[" ".join(["logs", *words])] = run.slurmtrain("logs", run.run_id, *words).stdout
    told["status"] = _status(run)
    told["checkpoints"] = json.loads(run.slurmtrain("checkpoints", run.run_id, "--json").stdout)
    return told


def _assert_all_commands_work(run: LiveRun, folder: Path) -> None:
    assert run.run_id in run.slurmtrain("explain", run.run_id).stdout
    page = folder / f"{run.run_id}.html"
    run.slurmtrain("explain", run.run_id, "--html", "--out", str(page))
    assert run.run_id in page.read_text("utf-8")
    archive = folder / f"{run.run_id}.tar.gz"
    made = json.loads(run.slurmtrain("bundle", run.run_id, "--out", str(archive), "--json").stdout)
    names = {row["name"] for row in made["files"]}
    assert {"explain.txt", "spec.yaml"} <= names, names
    assert run.run_id in run.slurmtrain("status").stdout


@dataclass
class Restarted(LiveRun):
    """Trains in the folder of the run that it goes on from."""

    folder: Path = Path()

    @property
    def checkpoints(self) -> Path:
        return self.folder


def _restart(run: LiveRun, *words: str) -> Restarted:
    new = json.loads(run.slurmtrain("restart", run.run_id, "--json", "--resume", *words).stdout)
    return Restarted(run.cluster, new["run_id"], int(new["job_id"]), Path(new["run_dir"]), run.workdir, run.checkpoints)


def test_prune_on_real_runs(cluster: Cluster, store: Path, small: Path) -> None:
    runs = _start(cluster, small)
    held, before = _content(runs.held), {run.run_id: _told(run) for run in runs.ended}
    newest = {run.run_id: max(run.checkpoints.iterdir()).read_bytes() for run in (runs.done, runs.failed)}

    # Two days later nothing is old; small files are joined, and a dry run says which without doing it.
    everything = {run.run_id: _content(run) for run in runs.ended}
    rows = _rows(_prune(cluster, small, 2, "--dry-run", "--json"))
    assert {run.run_id: _content(run) for run in runs.ended} == everything
    for _ in _prune_with_kills(cluster, small, 2):
        for run in runs.ended:
            assert run.slurmtrain("logs", run.run_id).stdout == before[run.run_id]["logs"]
            assert _status(run) == before[run.run_id]["status"]
    for run in runs.ended:
        assert rows[run.run_id]["action"] == "compacted", rows
        assert len(_files(run)) <= 25, _files(run)
        assert _told(run) == before[run.run_id]
        _assert_all_commands_work(run, small)
    assert rows[runs.held.run_id]["why"].startswith("it has not ended: Held")
    assert rows[runs.running.run_id]["why"].startswith("it has not ended: Running")
    assert _content(runs.held) == held

    # Forty days later they may go. Killed at one change after the other, until one call comes through.
    rows = _rows(_prune(cluster, small, 40, "--older-than", "30d", "--dry-run", "--json"))
    assert [rows[run.run_id]["action"] for run in runs.ended] == ["trimmed", "trimmed", "deleted"]
    free = _free(small)
    for _ in _prune_with_kills(cluster, small, 40, "--older-than", "30d"):
        for run in (runs.done, runs.failed):
            assert run.status()["state"] == before[run.run_id]["state"]
            assert newest[run.run_id] in {path.read_bytes() for path in run.checkpoints.iterdir()}
    promised = sum(row["freed_bytes"] for row in rows.values())
    assert 0.9 * promised <= _free(small) - free <= 1.2 * promised, "as much as the dry run said"
    assert not runs.bare.path.exists()
    assert not list(small.rglob(".pruned-*")), "nothing half is left"
    for run in (runs.done, runs.failed):
        assert [path.read_bytes() for path in run.checkpoints.iterdir()] == [newest[run.run_id]]
        assert len(_files(run)) <= 25
        _assert_all_commands_work(run, small)
        told = json.loads(run.slurmtrain("checkpoints", run.run_id, "--json").stdout)
        assert [row["path"] for row in told["checkpoints"] if row["resume"]] == [told["next"]["path"]]
        assert "slurmtrain prune" in run.slurmtrain("logs", run.run_id, check=False).stderr
    assert _content(runs.held) == held, "a held run keeps everything"

    # What is left is enough to go on from; and while that runs, the folder that it trains in is nobody's to thin out.
    command = trainer(small, "--pace", "0.05", "--steps", "100000", "--checkpoint-every", "10")
    again = _restart(runs.failed, "--set", f"command={json.dumps(command)}")
    again.wait_step(60)
    (row,) = _rows(_prune(cluster, small, 40, runs.failed.run_id, "--checkpoints", "1", "--json")).values()
    assert (row["action"], row["why"]) == ("kept", f"run {again.run_id} goes on in its checkpoint folder")
    assert len(list(runs.failed.checkpoints.glob("step-*.json"))) >= 2
    for run in (again, runs.running):
        run.slurmtrain("stop", run.run_id)
        run.wait_state("Stopped")
    assert_whole(runs.failed.checkpoints, again.newest_step())
    assert_whole(runs.running.checkpoints, runs.running.newest_step())
