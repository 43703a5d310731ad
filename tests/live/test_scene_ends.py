"""The scene where Slurm, a person or the clock ends the job: what companions keep when nobody can be asked any more."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from attack import batch_side
from cluster import Cluster, wait_until
from runs import LiveRun, submit
from scenes import QUICK, by_name, facts_of, journal, manifests, place, program, scene_folder, wait_complete, wait_facts

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]

WORKS = """
import os, signal, sys, time
print("rank", os.environ["RANK"], "works", flush=True)
open(f"begun-{os.environ['RANK']}", "w").close()
time.sleep(float(sys.argv[1]))
"""
RETRY = {"delay_s": 1}


def works(cluster: Cluster, store: Path, seconds: int = 300, *, partition: str = "batch", **spec: object) -> LiveRun:
    """A run of two ranks on two nodes that works for so long, once both have begun."""
    command = [*program(store, WORKS), str(seconds)]
    run = submit(cluster, store, command, env=place(store, QUICK), partition=partition, retry=RETRY, **spec)  # type: ignore[arg-type]
    wait_until(lambda: len(list(run.workdir.glob("begun-*"))) == 2, 90, "both ranks work")
    here = run.path / "attempts" / "000" / "nodes"
    wait_until(lambda: len(list(here.glob("*.json"))) == 2, 90, "both companions listen")
    return run


def nodes_of(cluster: Cluster, run: LiveRun) -> list[str]:
    job = cluster.job(run.job_id)
    assert job is not None
    return list(job.nodes)  # in Slurm's order, that of the ranks: n2 comes before n10


@pytest.mark.nodes(2)
def test_scancel_leaves_a_scene_and_is_not_held_up(cluster: Cluster, store: Path) -> None:
    run = works(cluster, store)
    nodes = nodes_of(cluster, run)
    asked = time.time()
    cluster.slurm("scancel", str(run.job_id))
    run.wait_slurm("CANCELLED")
    assert cluster.processes(run.job_id) == []
    took = time.time() - asked
    found = wait_facts(run, 2, timeout_s=1)
    assert set(found) == set(nodes)
    for node, manifest in found.items():
        assert manifest["ending"] == "ended"
        facts = facts_of(run, node)
        assert facts["environ"]["SLURMTRAIN_LAUNCH_KEY"] == "0.0"
        assert facts["batch_host"] == (node == nodes[0])
    assert took < 60


@pytest.mark.nodes(2)
def test_preemption_leaves_a_scene_and_the_run_goes_on(cluster: Cluster, store: Path) -> None:
    run = works(cluster, store)
    nodes = nodes_of(cluster, run)
    urgent = cluster.sbatch(
        "-p",
        cluster.partition("urgent"),
        "-w",
        nodes[1],
        "--exclusive",
        "-o",
        "/dev/null",
        script="#!/bin/bash\nsleep 1\n",
    )
    found = wait_facts(run, 2)
    assert set(found) == set(nodes)
    assert {m["ending"] for m in found.values()} == {"ended"}
    cluster.wait_gone(urgent)


@pytest.mark.nodes(2)
def test_the_warning_before_the_time_limit_takes_it_while_the_ranks_live(cluster: Cluster, store: Path) -> None:
    run = works(cluster, store, time_limit="1", stop={"signal": "none"})
    nodes = nodes_of(cluster, run)
    found = wait_complete(run, 2)
    assert set(found) == set(nodes)
    for node, manifest in found.items():
        assert (manifest["ending"], manifest["cause"]) == ("warned", "time_limit")
        assert [rank["rank"] for rank in facts_of(run, node)["ranks"]] == [nodes.index(node)]
    cluster.slurm("scancel", str(run.job_id))


@pytest.mark.nodes(2)
def test_slurms_own_end_of_the_time_limit_leaves_a_scene(cluster: Cluster, store: Path) -> None:
    """The agent hangs: nobody has warned the training, and Slurm ends the job."""
    run = works(cluster, store, time_limit="1")
    nodes = nodes_of(cluster, run)
    (agent,) = batch_side(run, "agent")
    cluster.signal_process(agent, signal.SIGSTOP)
    cluster.wait_state(run.job_id, "TIMEOUT", timeout_s=200)
    found = wait_facts(run, 2)
    assert set(found) == set(nodes)
    assert {(m["ending"], m["cause"]) for m in found.values()} == {("ended", "")}
    assert cluster.processes(run.job_id) == []


@pytest.mark.nodes(2)
def test_a_hang_is_kept_before_its_ranks_are_ended(cluster: Cluster, store: Path) -> None:
    run = works(cluster, store, hang={"timeout_s": 6, "startup_s": 0})
    nodes = nodes_of(cluster, run)
    found = wait_complete(run, 2)
    for node, manifest in found.items():
        assert manifest["ending"] == "hung"
        assert [rank["rank"] for rank in facts_of(run, node)["ranks"]] == [nodes.index(node)], "they lived"
        assert "05-processes" in by_name(manifest)
    run.wait_slurm("RUNNING")
    cluster.slurm("scancel", str(run.job_id))


@pytest.mark.nodes(2)
def test_without_companions_the_agent_keeps_the_batch_host(cluster: Cluster, store: Path) -> None:
    command = program(store, "import os, sys, time\ntime.sleep(1)\nsys.exit(9)\n")
    run = submit(
        cluster,
        store,
        command,
        env=place(store, QUICK),
        companion=False,
        retry={"in_place": 0, "requeues": 0, "delay_s": 0},
    )
    run.wait_state("Failed", "Held")
    (node, manifest) = next(iter(manifests(run).items()))
    assert len(manifests(run)) == 1
    assert manifest["ending"] == "failed"
    assert facts_of(run, node)["batch_host"]
    (taken,) = [row for row in journal(run) if row["kind"] == "scene_taken"]
    assert (taken["nodes"], taken["of"]) == (1, 2)


@pytest.mark.nodes(3)
def test_a_lost_batch_host_leaves_what_the_other_node_knew_and_slurms_records(cluster: Cluster, store: Path) -> None:
    run = works(cluster, store)
    nodes = nodes_of(cluster, run)
    cluster.kill_node(nodes[0])
    found = wait_facts(run, 1, timeout_s=180)
    assert (list(found), found[nodes[1]]["ending"]) == ([nodes[1]], "ended")

    def outside() -> bool:
        run.watch_once()
        rows = by_name(manifests(run).get("+after", {"collectors": []}))
        return rows.get("40-outside", {}).get("status") == "taken"

    wait_until(outside, 180, "the next gate or a watcher looks from outside")
    said = (scene_folder(run) / "+after" / "40-outside" / "output.txt").read_text()
    assert said == f"after {run.job_id}\n"
    assert "10-facts" not in by_name(manifests(run)["+after"])
    cluster.slurm("scancel", str(run.job_id))


@pytest.mark.nodes(3)
def test_a_node_that_dies_while_its_scene_is_taken_costs_only_its_own(cluster: Cluster, store: Path) -> None:
    """The other node's scene is whole, and the run goes on elsewhere."""
    slow = {
        "10-facts.py": QUICK["10-facts.py"],
        "20-slow.py": "import time\nTIME_LIMIT_S = 20\ndef collect(scene):\n    time.sleep(10)\n",
    }
    fails = 'import os, sys, time\ntime.sleep(1)\nsys.exit(4 if os.environ["SLURMTRAIN_ATTEMPT"] == "0" else 0)\n'
    run = submit(cluster, store, program(store, fails), env=place(store, slow), retry={"in_place": 0, "delay_s": 0})
    found = wait_facts(run, 2)
    assert {m["ending"] for m in found.values()} == {"failed"}
    nodes = nodes_of(cluster, run)  # the first has the batch script
    cluster.kill_node(nodes[1])

    def settled() -> bool:
        run.watch_once()
        return run.status()["state"] in {"Completed", "Held", "Failed"}

    wait_until(settled, 300, "the run goes on without the lost node, or is decided")
    after = manifests(run)
    assert after[nodes[0]]["complete"]
    assert by_name(after[nodes[0]])["20-slow"]["status"] == "taken"
    assert not after[nodes[1]]["complete"]
    assert by_name(after[nodes[1]])["10-facts"]["status"] == "taken", "what was written stays"


@pytest.mark.needs_cgroup
def test_out_of_memory_leaves_a_scene(cluster: Cluster, store: Path) -> None:
    eats = "import time\ntime.sleep(1)\nx = [bytearray(16 << 20) for _ in range(10000)]\n"
    memory = {"memory": "300M"}
    run = submit(cluster, store, program(store, eats), nodes=1, resources=memory, env=place(store, QUICK))
    row = run.wait_state("Failed", "Held")
    assert row["cause"] == "host_oom"
    (manifest,) = manifests(run).values()
    assert (manifest["ending"], manifest["cause"], manifest["complete"]) == ("failed", "host_oom", True)
    assert by_name(manifest)["10-facts"]["status"] == "taken"


def test_a_full_store_costs_the_scene_and_nothing_else(cluster: Cluster, store: Path) -> None:
    """The launch fails with its store full to the last byte; the run is judged and ends all the same."""
    small = store / "small"
    small.mkdir()
    cluster.as_root("mount", "-t", "tmpfs", "-o", "size=4m,mode=0777", "small-store", str(small))
    try:
        fills = "\n".join(
            (
                "import os, sys, time",
                "time.sleep(1)",
                "try:",
                "    with open(os.environ['SLURMTRAIN_RUN_DIR'] + '/filler', 'wb', 0) as stream:",
                "        while stream.write(bytes(4096)): pass",
                "except OSError as exc: print('full:', exc, flush=True)",
                "sys.exit(5)",
            )
        )
        owner = store.stat()
        home = small / "store"
        home.mkdir()
        os.chown(home, owner.st_uid, owner.st_gid)
        run = submit(
            cluster, home, program(home, fills), nodes=1, env=place(home, QUICK), retry={"in_place": 0, "requeues": 0}
        )
        run.wait_slurm("FAILED", "COMPLETED", timeout_s=180)
        assert run.ended_states() == ["FAILED"]
        assert cluster.processes(run.job_id) == [], "no collector is left"
        (run.path / "filler").unlink()
        run.watch_once()
        assert run.wait_state("Failed", "Held")["state"] in {"Failed", "Held"}
    finally:
        cluster.as_root("umount", "-l", str(small))
