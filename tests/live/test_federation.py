"""A run that is submitted to one cluster of a federation and started by another: Slurm calls it REVOKED where it came
from, and nobody decides by that word. A second slurmctld without a living node is the cluster of the submission."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from attack import kill, steady
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, slurmtrain, submit

pytestmark = [
    pytest.mark.whole_cluster,
    pytest.mark.native_only,
    pytest.mark.needs_accounting,
    pytest.mark.timeout(600),
]
NAME, FEDERATION = "mini-elsewhere", "mini-federation"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def _write_conf(cluster: Cluster, folder: Path) -> Path:
    """The cluster's own slurm.conf with another name, places of its own, and one node that never registers."""
    source = Path(cluster.facts["slurm_conf"])
    elsewhere = r"^(NodeName=(?!DEFAULT)|PartitionName=lane).*\n"  # nodes that it does not have
    text = re.sub(elsewhere, "", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    own = {
        "ClusterName": NAME,
        "SlurmctldPort": _free_port(),
        "StateSaveLocation": folder / "state",
        "SlurmctldPidFile": folder / "slurmctld.pid",
        "SlurmctldLogFile": folder / "slurmctld.log",
    }
    for key, value in own.items():
        text, count = re.subn(rf"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
        assert count == 1, key
    nowhere = f"NodeName=nowhere NodeHostname=localhost NodeAddr=127.0.0.1 Port={_free_port()}"
    text = re.sub(r"^NodeName=DEFAULT.*$", rf"\g<0>\n{nowhere}", text, flags=re.MULTILINE)
    conf = folder / "slurm.conf"
    conf.write_text(text, encoding="utf-8")
    return conf


@pytest.fixture
def elsewhere(cluster: Cluster) -> Iterator[Path]:
    """``slurm.conf`` of a second cluster, in a federation with the first."""
    folder = Path(cluster.facts["dir"]) / "federation"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "state").mkdir(parents=True)
    conf = _write_conf(cluster, folder)
    for path in (folder, folder / "state"):
        shutil.chown(path, "slurm")
    program = f"{cluster.facts['sbin_dir']}/slurmctld"
    daemon = subprocess.Popen([program, "-D", "-f", str(conf)], stderr=subprocess.DEVNULL, cwd=folder)
    own = str(cluster.facts["cluster_name"])
    try:
        listed = ("sacctmgr", "-n", "-P", "list", "cluster", "format=cluster,controlport")
        wait_until(lambda: re.search(rf"^{NAME}\|[1-9]", cluster.slurm(*listed), re.MULTILINE), 60, "it has registered")
        port = re.findall(r"^SlurmctldPort=(\d+)", conf.read_text(encoding="utf-8"), re.MULTILINE)[0]
        wait_until(lambda: _listens(int(port)), 60, "it listens; a refusal is not tried again for a minute")
        cluster.slurm("sacctmgr", "-i", "add", "federation", FEDERATION, f"clusters={own},{NAME}")
        wait_until(lambda: "Synced:Yes" in cluster.slurm("scontrol", "show", "federation"), 150, "they know each other")
        yield conf
    finally:
        cluster.cancel_all()
        cluster.slurm("sacctmgr", "-i", "delete", "federation", FEDERATION, check=False)
        daemon.terminate()
        daemon.wait(60)
        cluster.slurm("sacctmgr", "-i", "delete", "cluster", NAME, check=False)


def test_a_run_that_another_cluster_of_the_federation_runs(cluster: Cluster, store: Path, elsewhere: Path) -> None:
    env = {"SLURM_CONF": str(elsewhere)}
    run = submit(cluster, store, steady(store, 400), nodes=1, env=env, retry={"delay_s": 0})
    run.wait_step(5)
    said = cluster.as_user("squeue", "-h", "-t", "all", "-j", str(run.job_id), "-o", "%T", env=env).stdout
    assert said.strip() == "REVOKED", "or this shows nothing"
    assert watch_from(run, env) == "", "nothing is to be done"
    assert status_from(run, env).count("Running") == 1
    kill(run, "shell")
    wait_until(lambda: "requeue" in watch_from(run, env), 90, "the watcher of the submission's cluster decides")
    run.wait_state("Completed", timeout_s=240)
    assert run.starts() == ["0.0", "1.0"]
    assert [d["decided_by"] for d in run.decisions()] == ["watcher", "agent"]
    assert_whole(run.checkpoints, 400)


def status_from(run: LiveRun, env: dict[str, str]) -> str:
    return str(slurmtrain(run.cluster, run.path.parent.parent, "status", run.run_id, env=env).stdout)


def watch_from(run: LiveRun, env: dict[str, str]) -> str:
    """What a watcher did, without what it saw."""
    told = slurmtrain(run.cluster, run.path.parent.parent, "watch", "--once", env=env).stdout
    return "\n".join(line for line in str(told).splitlines() if " is RUNNING" not in line)
