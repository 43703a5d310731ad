"""Fixtures of the live tests: a real cluster, brought back to rest after every test.

Under pytest-xdist each worker has a lane: nodes and partitions of its own. A test that stops a daemon
of the whole cluster is marked `whole_cluster` and runs alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from torch_env import formats_python, framework_python, torch_python
from transitions import check_transitions

__all__ = ["formats_python", "framework_python", "torch_python"]

MARKERS = (
    "whole_cluster: stops slurmctld, slurmdbd or another daemon that all tests share; runs alone",
    "needs_cgroup: needs steps confined by cgroups",
    "needs_accounting: needs slurmdbd",
    "default_timers: wants Slurm's own timers (KillWait 30, cred_expire 120 ...); others run with the quick ones",
    "any_timers: runs with both timer profiles",
    "native_only: breaks something in a way that only works on the native cluster",
    "docker_too: belongs to the subset that also runs on the container cluster",
    "nodes(n): needs a lane of at least n nodes",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests here as live, and leave out those that want a cluster with other timers."""
    here = str(Path(__file__).parent)
    facts = os.environ.get("MINI_SLURM_JSON")
    timers = json.loads(Path(facts).read_text(encoding="utf-8"))["timers"] if facts else "quick"
    unfit = []
    for item in items:
        if not str(item.path).startswith(here):
            continue
        item.add_marker(pytest.mark.live)
        wanted = "default" if item.get_closest_marker("default_timers") else "quick"
        if item.get_closest_marker("any_timers") is None and wanted != timers:
            unfit.append(item)
    if unfit:
        config.hook.pytest_deselected(items=unfit)
        items[:] = [item for item in items if item not in unfit]
    items.sort(key=lambda item: item.get_closest_marker("whole_cluster") is not None)  # those who run alone come last


@pytest.fixture(scope="session")
def cluster_session() -> Cluster:
    """The cluster of MINI_SLURM_JSON, or this worker's lane of it; an error, never a skip, when it is away."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    lanes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    lane = int(worker.removeprefix("gw")) if worker else 0
    cluster = Cluster.from_env(lane, lanes)
    cluster.restore()
    return cluster


@pytest.fixture
def cluster(cluster_session: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster at rest; after the test its jobs are cancelled and its daemons and nodes brought back.

    Under xdist it is this worker's lane, but all of it for a test that runs alone.
    """
    _skip_unfit(cluster_session, request.node)
    alone = request.node.get_closest_marker("whole_cluster") is not None
    with _turn(Path(cluster_session.facts["dir"]), alone=alone):
        found = Cluster(cluster_session.facts) if alone else cluster_session
        yield found
        found.restore()


def _skip_unfit(cluster: Cluster, node: pytest.Item) -> None:
    if node.get_closest_marker("needs_cgroup") and not cluster.has_cgroup:
        pytest.skip("this machine has no cgroups for slurmd")
    if node.get_closest_marker("needs_accounting") and not cluster.has_accounting:
        pytest.skip("the cluster runs without accounting")
    if node.get_closest_marker("native_only") and cluster.docker:
        pytest.skip("only on the native cluster")
    nodes = node.get_closest_marker("nodes")
    if nodes and len(cluster.nodes) < nodes.args[0]:
        pytest.fail(f"needs {nodes.args[0]} nodes, has {len(cluster.nodes)}: start more nodes or fewer workers")


@contextmanager
def _turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """A shared turn, or the whole cluster alone; the gate keeps a waiting loner from starving."""
    with (directory / ".gate.lock").open("a") as gate, (directory / ".turn.lock").open("a") as turn:
        mode = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        fcntl.flock(gate, mode)
        fcntl.flock(turn, mode)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.fixture
def store(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory of this test's own in the researcher's shared store, kept if the test fails.

    The states of its runs must have followed each other as they may.
    """
    name = re.sub(r"[^\w.-]+", "_", request.node.name)[:80]
    path = cluster.store / f"test-{os.getpid()}-{name}"
    path.mkdir(mode=0o700)
    os.chown(path, int(cluster.facts["user"]["uid"]), int(cluster.facts["user"]["gid"]))
    yield path
    if not getattr(request.node, "failed", False):
        wrong = check_transitions(path)
        assert not wrong, wrong
        shutil.rmtree(path, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]
    return report
