"""All bundled collectors on a real Slurm after a rank that crashed for real: what they find, and no secret among it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cluster import Cluster
from runs import LiveRun, submit
from scenes import by_name, program, scene_folder, wait_complete

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]

PATTERN = Path("/proc/sys/kernel/core_pattern").read_text().strip()
SECRETS = {
    "environment": "pl4nted-in-the-environment-1",
    "variable": "pl4nted-in-a-variable-2",
    "command": "pl4nted-on-the-command-line-3",
    "remote": "pl4nted-in-a-remote-4",
    "diff": "pl4nted-in-a-change-5",
    "log": "hf_" + "Pl4ntedInTheLogQwErTyUiOpAsDfGhJkLz",
}
TRAINING = """
import ctypes, os, sys, time
print("token", os.environ["MY_API_KEY"], os.environ["CLIENT_SECRET"], sys.argv)
print("hf_" + "Pl4ntedInTheLogQwErTyUiOpAsDfGhJkLz")
print("step 1 of rank", os.environ["RANK"], flush=True)
while not os.path.exists("go"):
    time.sleep(0.2)
if os.environ["RANK"] == "1":
    ctypes.string_at(0)
time.sleep(120)
"""


def make_repository(folder: Path) -> None:
    """A work directory under git, with credentials in its remote and in a change that is not committed."""
    identity = ("-c", "user.name=Jane", "-c", "user.email=j@example.org", "-c", "safe.directory=*")

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, timeout=60)

    (folder / "model.py").write_text("width = 64\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "First version")
    git("remote", "add", "origin", f"https://jane:{SECRETS['remote']}@git.example.org/x.git")
    (folder / "settings.py").write_text("")
    git("add", "-N", "settings.py")
    (folder / "settings.py").write_text(f"DB_PASSWORD = '{SECRETS['diff']}'\n")


def text_below(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text("utf-8", "replace") for p in folder.rglob("*") if p.is_file()}


def start(cluster: Cluster, store: Path) -> LiveRun:
    run = submit(
        cluster,
        store,
        [*program(store, TRAINING), "--api-key", SECRETS["command"]],
        env={"MY_API_KEY": SECRETS["environment"]},
        environment={"variables": {"CLIENT_SECRET": SECRETS["variable"]}},
        core_dumps={"enabled": True, "size_limit": "1G"},
        scene={"budget_s": 60},
        retry={"in_place": 0, "requeues": 0, "infrastructure": 0},
    )
    make_repository(run.workdir)
    owner = store.stat()
    for path in run.workdir.rglob("*"):
        os.lchown(path, owner.st_uid, owner.st_gid)
    (run.workdir / "go").touch()
    return run


@pytest.mark.nodes(2)
def test_a_crashed_rank_leaves_a_scene_that_tells_much_and_no_secret(cluster: Cluster, store: Path) -> None:
    run = start(cluster, store)
    run.wait_state("Held", "Failed", "Stopped", timeout_s=240)
    found = wait_complete(run, 2)
    folder = scene_folder(run)
    kept = text_below(folder)
    assert [(where, name) for where, text in kept.items() for name, secret in SECRETS.items() if secret in text] == []
    assert sum("***" in text for text in kept.values()) >= 4
    rows = {node: by_name(manifest) for node, manifest in found.items()}
    failed = {
        (node, name, row["why"]) for node, r in rows.items() for name, row in r.items() if row["status"] == "failed"
    }
    assert failed == set()
    host = next(node for node, r in rows.items() if "20-slurm" in r)
    assert f"JobId={run.job_id} " in kept[f"{host}/20-slurm/job.txt"]
    assert "NodeName=" in kept[f"{host}/20-slurm/nodes.txt"]
    assert "step 1 of rank 1" in kept[f"{host}/01-last-lines/train-{run.job_id}.txt"].partition("=== rank 1")[2]
    assert "CLIENT_SECRET=***" in kept[f"{host}/25-environment/environment.txt"]
    assert "MY_API_KEY=***" in kept[f"{host}/25-environment/environment.txt"]
    assert "https://***@git.example.org/x.git" in kept[f"{host}/45-code/remotes.txt"]
    assert "+DB_PASSWORD = '***'" in kept[f"{host}/45-code/changes.diff"]
    for node in rows:
        assert "MemAvailable" in kept[f"{node}/10-memory/node.txt"]
        assert "GiB free" in kept[f"{node}/30-disk/output.txt"]
    # what the ranks did is written down in the run directory, for the user alone to read: the plan holds the command
    assert SECRETS["command"] in json.loads((run.path / "plan.json").read_text())["spec"]["command"]
    if PATTERN.startswith("core"):
        check_core(run, store, [note for r in rows.values() for note in r["60-core-dumps"]["notes"]], kept)


def check_core(run: LiveRun, store: Path, notes: list[str], kept: dict[str, str]) -> None:
    """The rank's core file lies beside the launch, its back trace in the scene."""
    assert any("rank 1" in note and "died of SIGSEGV; core file" in note for note in notes), notes
    (core,) = (run.path / "attempts/000/launches/0/cores").glob("core-rank-1-*")
    assert core.read_bytes()[:4] == b"\x7fELF"
    info = core.stat()
    assert (info.st_uid, info.st_mode & 0o777) == (store.stat().st_uid, 0o600)
    if shutil.which("gdb"):
        (trace,) = (text for name, text in kept.items() if name.endswith("60-core-dumps/back-trace-1.txt"))
        assert "SIGSEGV" in trace
        assert "#0" in trace
