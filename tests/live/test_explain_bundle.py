"""What explain tells of a run that really failed, its page and its bundle; no planted secret is in any of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from runs import PYTHON, LiveRun, submit

pytestmark = pytest.mark.timeout(600)

# Made up, in the shapes of real ones: by name, by shape, in a URL, behind an option.
SECRETS = {
    "environment": "0a1b2c3d4e5f60718293a4b5c6d7e8f901234567",
    "log": "hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm12345678",
    "remote": "tr0ub4dor-and-3-live",
    "command": "correct-horse-battery-live",
    "printed": "ghp_" + "z9Y8x7W6v5U4t3S2r1Q0p9O8n7M6l5K4j3I2",
}
TRAINING = """
import os, sys, time
rank = int(os.environ["SLURM_PROCID"])
print("token", os.environ["WANDB_API_KEY"], "and hf_" + "QwErTyUiOpAsDfGhJkLzXcVbNm12345678", flush=True)
print("started as", sys.argv, "with", "ghp_" + "z9Y8x7W6v5U4t3S2r1Q0p9O8n7M6l5K4j3I2", flush=True)
time.sleep(2)
if rank == 1:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
time.sleep(60)
"""


def _fail(cluster: Cluster, store: Path) -> LiveRun:
    """Two nodes; rank 1 crashes in both launches, and no rung is left."""
    program = store / "leaky.py"
    program.write_text(TRAINING, encoding="utf-8")
    command = [PYTHON, str(program), "--api-key", SECRETS["command"]]
    environment = {"variables": {"WANDB_API_KEY": SECRETS["environment"]}}
    run = submit(
        cluster, store, command, name="leaky", nodes=2, environment=environment,
        retry={"in_place": 1, "requeues": 0, "delay_s": 0},
    )  # fmt: skip
    url = f"https://ann:{SECRETS['remote']}@git.example.org/ann/train.git"
    _make_repository(run.workdir, url)
    run.wait_state("Failed", "Held", timeout_s=180)
    return run


def _make_repository(folder: Path, url: str) -> None:
    """As ``git init`` and ``git remote add`` leave it; not every node has git."""
    owner = folder.stat()
    for name in (".git", ".git/objects", ".git/refs"):
        (folder / name).mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    config = f'[core]\n\trepositoryformatversion = 0\n[remote "origin"]\n\turl = {url}\n'
    (folder / ".git" / "config").write_text(config, encoding="utf-8")
    for path in (folder / ".git", *(folder / ".git").iterdir()):
        os.chown(path, owner.st_uid, owner.st_gid)


def _read_bundle(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        names = archive.getmembers()
        assert all(member.isreg() for member in names)
        return {m.name.partition("/")[2]: archive.extractfile(m).read() for m in names}  # type: ignore[union-attr]


def _assert_no_secret(data: bytes, where: str) -> None:
    for name, secret in SECRETS.items():
        assert secret.encode() not in data, f"the secret of the {name} is in {where}"


@pytest.mark.docker_too
def test_a_run_that_failed_is_explained_and_nothing_secret_leaves_it(cluster: Cluster, store: Path) -> None:
    run = _fail(cluster, store)
    if cluster.has_accounting:
        assert run.ended_states() == ["FAILED"]
    (launched,) = cluster.sacct(run.job_id) or [{}]
    log = run.log()
    for name in ("environment", "log", "printed"):
        assert SECRETS[name] in log, f"the training printed the secret of the {name}"

    text = run.slurmtrain("explain", run.run_id).stdout
    assert re.search(r"Found +\w+: ", text)
    assert "rank 1" in " ".join(text.split())
    assert "restart in place (1 of 1" in " ".join(text.split())
    assert all(len(line) <= 80 or re.match(r"(?:\w+)? +/\S+$", line) for line in text.splitlines()), text

    told: dict[str, Any] = json.loads(run.slurmtrain("explain", run.run_id, "--json").stdout)
    started = [line for line in told["story"] if line["kind"] == "started"]
    assert [line["attempt"] for line in started] == [0]
    assert [line["launch"] for line in told["story"] if line["kind"] == "launch"] == [0, 1]
    if launched:  # what accounting says of the same job
        began = datetime.fromisoformat(launched["Start"]).astimezone(timezone.utc)
        ours = datetime.fromisoformat(started[0]["at"].replace("Z", "+00:00"))
        assert abs((ours - began).total_seconds()) < 30
        assert launched["NodeList"] in started[0]["text"]
        whole = (datetime.fromisoformat(launched["End"]) - datetime.fromisoformat(launched["Submit"])).total_seconds()
        assert abs(told["time"]["whole_s"] - told["time"]["held_s"] - whole) < 30
    assert told["time"]["failures"] == 2
    assert told["time"]["lost_s"] == pytest.approx(told["time"]["training_s"])

    page = Path(run.slurmtrain("explain", run.run_id, "--html").stdout.strip())
    assert page == run.path / "explain.html"
    html = page.read_bytes()
    _assert_no_secret(html, "the page")
    for wanted in (b"illegal memory access", b"Ranks and nodes", b"restart in place", b"***"):
        assert wanted in html, wanted

    out = store / "ticket.tar.gz"
    manifest = json.loads(run.slurmtrain("bundle", run.run_id, "--out", str(out), "--json").stdout)
    assert out.stat().st_mode & 0o777 == 0o600
    files = _read_bundle(out)
    for name, data in files.items():
        _assert_no_secret(data, name)
    log_name = f"logs/train-{run.job_id}.log"
    assert {"explain.txt", "explain.html", "job.sbatch", "plan.json", "spec.yaml", log_name} <= set(files)
    assert b"illegal memory access" in files[log_name]
    masked = {row["name"] for row in manifest["files"] if row["secrets_masked"]}
    assert {log_name, "plan.json"} <= masked
    assert not [name for name in files if name.endswith(".pyz")]
    _assert_scene(run, told, files)
    listed = subprocess.run(["tar", "-tzf", str(out)], capture_output=True, text=True, timeout=60, check=True).stdout
    assert len(listed.splitlines()) == len(files)


def _assert_scene(run: LiveRun, told: dict[str, Any], files: dict[str, bytes]) -> None:
    """What the scene holds, where one was taken: in the bundle, and without secrets as it lies there."""
    scenes = sorted(run.path.glob("attempts/000/launches/*/scene/*/manifest.json"))
    for path in scenes:
        assert str(path.relative_to(run.path)) in files
        for file in path.parent.rglob("*"):
            if file.is_file():
                _assert_no_secret(file.read_bytes(), str(file))
    assert not told["findings"] or scenes
