"""The demo keeps its promises, and so do the commands that README and docs show."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import tomllib
from cluster import Cluster, wait_until

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tests" / "unit" / "docs"))
from blocks import files_of, find_file, pages, read_blocks  # noqa: E402  (shared with the unit tests of the docs)

DEMO = REPO / "docker" / "demo"
ENDS = {"COMPLETED", "FAILED", "CANCELLED"}
PAGES = [page for page in pages() if any(block.how == "cluster" for block in read_blocks(page))]


@pytest.mark.whole_cluster
@pytest.mark.docker_too
@pytest.mark.timeout(900)
def test_the_demo_keeps_its_promises(cluster: Cluster, store: Path) -> None:
    """Run as `mini-slurm demo` runs it: by the researcher, from a copy that the researcher can read."""
    if len(cluster.all_nodes) < 4:
        pytest.skip("the demo shows a cluster of four nodes")
    _install_packages(cluster)
    copy = store / "demo"
    shutil.copytree(DEMO, copy, ignore=shutil.ignore_patterns("__pycache__"))
    _give(cluster, copy)
    done = cluster.as_user(copy / "run", cwd=store, timeout_s=800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    assert "BROKEN" not in done.stdout
    kept = re.findall(r"^  kept: +(.+)$", done.stdout, re.MULTILINE)
    assert len(kept) == (14 if cluster.has_accounting else 8), kept
    jobs = [int(found) for found in re.findall(r"^run \S+, job (\d+)$", done.stdout, re.MULTILINE)]
    assert len(jobs) == 3
    assert "$ slurmtrain status" in done.stdout
    assert done.stdout.count("$ slurmtrain explain") == 2
    if cluster.has_accounting:
        states = [cluster.states_of(job) for job in jobs]
        assert states == [["REQUEUED", "COMPLETED"], ["FAILED"], ["PREEMPTED", "COMPLETED"]]
    for job in jobs:
        assert not cluster.processes(job)


@pytest.mark.whole_cluster
@pytest.mark.timeout(600)
@pytest.mark.nodes(2)
def test_a_demo_that_goes_wrong_says_so(cluster: Cluster, store: Path) -> None:
    """A promise that is broken makes the exit code 1: here the training ends before its fault can happen."""
    _install_packages(cluster)
    copy = store / "demo"
    shutil.copytree(DEMO, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "walkthrough.py").write_text(
        (DEMO / "walkthrough.py")
        .read_text(encoding="utf-8")
        .replace("        walk.mistake()\n        walk.preemption()\n", ""),
        encoding="utf-8",
    )
    crash = (DEMO / "crash.yaml").read_text(encoding="utf-8")
    (copy / "crash.yaml").write_text(crash.replace("60:segv:bad-node", "500:segv:bad-node"), encoding="utf-8")
    _give(cluster, copy)
    env = {"SBATCH_PARTITION": cluster.partition()}
    done = cluster.as_user(copy / "run", cwd=store, timeout_s=300, env=env)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "BROKEN: Slurm saw one job run twice" in done.stdout or not cluster.has_accounting
    assert "BROKEN: it began at step 0, then twice" in done.stdout
    assert "promise(s) broken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.docker_too
@pytest.mark.nodes(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_docs_show_works(page: Path, cluster: Cluster, store: Path) -> None:
    """Every command line of a page, in order, in a researcher's folder with the page's files in it."""
    files = {"train.py": find_file("train.py"), **files_of(page)}
    for name, text in files.items():
        (store / name).write_text(text, encoding="utf-8")
    _give(cluster, store)
    env = {"SLURMTRAIN_STORE": str(store / "runs"), "SBATCH_PARTITION": cluster.partition()}
    for block in read_blocks(page):
        for command, code in block.commands if block.how == "cluster" else ():
            done = cluster.as_user("bash", "-c", command, env=env, cwd=store, timeout_s=240)
            said = f"{page.name}:{block.line}: {command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            assert done.returncode == code, said
            assert "Traceback" not in done.stderr, said
    states = _final_states(cluster, store)
    assert states, "no job was submitted"
    assert set(states.values()) <= ENDS, states
    assert "COMPLETED" in states.values()


def _install_packages(cluster: Cluster) -> None:
    """What `mini-slurm demo` adds to the cluster's venv and `up` alone does not."""
    if cluster.as_user("python3", "-c", "import numpy, sklearn").returncode == 0:
        return
    if cluster.docker:
        pytest.skip("these containers were started without the demo's packages; `mini-slurm demo --docker` has them")
    needed = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    done = cluster.as_root(f"{cluster.facts['venv']}/bin/pip", "install", "-q", *needed["demo"], timeout_s=600)
    assert done.returncode == 0, f"the demo's packages could not be installed: {done.stderr[-600:]}"


def _final_states(cluster: Cluster, store: Path) -> dict[str, str]:
    """Slurm's last word on each run of the page, by the run's id."""
    logs = (store / "runs").glob("runs/*/logs/train-*.log")
    jobs = {path.parents[1].name: int(path.stem.split("-")[1]) for path in logs}
    return {run: _final_state(cluster, job) for run, job in jobs.items()}


def _final_state(cluster: Cluster, job_id: int) -> str:
    wait_until(lambda: cluster.job(job_id) is None or not cluster.processes(job_id), 90, f"the end of job {job_id}")
    if not cluster.has_accounting:
        row = cluster.job(job_id)
        return row.state if row else "COMPLETED"
    wait_until(lambda: set(cluster.states_of(job_id)[-1:]) & ENDS, 30, f"the last row of job {job_id}")
    return cluster.states_of(job_id)[-1]


def _give(cluster: Cluster, top: Path) -> None:
    """Make everything below ``top`` the researcher's."""
    uid, gid = int(cluster.facts["user"]["uid"]), int(cluster.facts["user"]["gid"])
    for path in [top, *top.rglob("*")]:
        os.chown(path, uid, gid)
