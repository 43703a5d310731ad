"""The scene of a failure on a real Slurm: what is kept on which node, and that nobody waits for it too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from runs import submit
from scenes import (
    ALL,
    QUICK,
    assert_private,
    by_name,
    facts_of,
    journal,
    manifests,
    place,
    program,
    scene_folder,
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]

FAILS_ONCE = """
import os, sys, time
print("step 1 of launch", os.environ["SLURMTRAIN_LAUNCH"], flush=True)
time.sleep(1)
if os.environ["RANK"] == "1" and os.environ["SLURMTRAIN_LAUNCH"] == "0":
    sys.exit(7)
time.sleep(1)
"""


@pytest.mark.nodes(2)
def test_a_failed_launch_is_kept_on_all_nodes_and_the_next_one_does_not_wait_for_a_stubborn_collector(
    cluster: Cluster, store: Path
) -> None:
    env = {**place(store, ALL), "MARK": "of the launch"}
    run = submit(cluster, store, program(store, FAILS_ONCE), env=env, retry={"delay_s": 0}, scene={"budget_s": 25})
    run.wait_state("Completed", timeout_s=240)
    nodes = cluster.expand(run.cluster.sacct(run.job_id, fields=("NodeList",))[0]["NodeList"])
    found = manifests(run)
    assert sorted(found) == sorted(nodes)
    assert_private(scene_folder(run), int(cluster.facts["user"]["uid"]))
    for node, manifest in found.items():
        rows = by_name(manifest)
        assert (manifest["ending"], manifest["complete"], manifest["node"]) == ("failed", True, node)
        assert rows["10-facts"]["notes"] == [f"told by {node}"]
        assert (rows["20-stubborn"]["status"], rows["20-stubborn"]["size"]) == ("timed_out", 6)
        assert (rows["30-flood"]["size"], rows["30-flood"]["truncated"]) == (20000, True)
        assert "40-outside" not in rows
        facts = facts_of(run, node)
        assert (facts["job_id"], facts["attempt"], facts["launch"]) == (str(run.job_id), 0, 0)
        assert facts["environ"]["MARK"] == "of the launch"
        assert facts["environ"]["SLURMTRAIN_LAUNCH_KEY"] == "0.0"
        log = Path(facts["log_file"]).read_bytes()[facts["log_offset"] :].decode()
        assert log.partition("step 1")[2].startswith(" of launch 0")
        assert manifest["seconds"] < 30
    assert not manifests(run, launch=1), "a launch that ends well has none"
    assert [p for p in cluster.processes() if "stubborn" in " ".join(p.argv)] == []
    ended = next(row for row in journal(run) if row["kind"] == "launch_ended")
    begun = [row for row in journal(run) if row["kind"] == "launch_started"][1]
    assert begun["at"] - ended["at"] < 25 + 20, "judging and giving back"
    (taken,) = [row for row in journal(run) if row["kind"] == "scene_taken"]
    assert begun["at"] < taken["at"], "a launch in place did not wait for it"
    assert (taken["nodes"], taken["of"], taken["ending"]) == (2, 2, "failed")
    assert (run.path / taken["path"]).is_dir()


@pytest.mark.nodes(2)
def test_a_checkpoint_that_the_training_deletes_is_kept_and_used(cluster: Cluster, store: Path) -> None:
    """A rotation that goes wrong: the program saves, deletes all its checkpoints, and fails."""
    program_text = """
import os, sys, time, zipfile
from pathlib import Path
folder = Path(os.environ["SLURMTRAIN_CHECKPOINT_DIR"])
number = len(list(Path.cwd().glob("resumed-*")))
head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + bytes([10])
if os.environ["RANK"] == "0":
    Path(f"resumed-{number}").write_text(os.environ["SLURMTRAIN_RESUME_FROM"])
    if number == 0:
        with zipfile.ZipFile(folder / "step-7.npz", "w") as archive:
            archive.writestr("w.npy", bytes([0x93]) + b"NUMPY" + bytes([1, 0, 118, 0]) + head + bytes(16))
    if number == 1:
        for path in folder.iterdir():
            path.unlink()
time.sleep(1)
sys.exit(3 if number < 2 else 0)
"""
    run = submit(cluster, store, program(store, program_text), env=place(store, QUICK), retry={"delay_s": 0})
    run.wait_state("Completed", timeout_s=240)
    resumed = [Path((run.workdir / f"resumed-{n}").read_text()).name for n in range(3)]
    assert resumed == ["", "step-7.npz", "step-7.npz"]
    assert "had been kept" in run.log()
    assert not (run.path / "kept-checkpoint").exists(), "let go when the run is completed"


@pytest.mark.nodes(2)
def test_all_components_of_a_heterogeneous_job_are_asked(cluster: Cluster, store: Path) -> None:
    fails = 'import os, sys, time\ntime.sleep(2)\nsys.exit(3 if os.environ["RANK"] == "1" else 0)\n'
    components = [{"nodes": 1, "tasks_per_node": 1}]
    retry = {"in_place": 0, "requeues": 0}
    run = submit(
        cluster, store, program(store, fails), nodes=1, components=components, env=place(store, QUICK), retry=retry
    )
    run.wait_state("Failed", "Held")
    assert len(manifests(run)) == 2
    assert {m["ending"] for m in manifests(run).values()} == {"failed"}
    (taken,) = [row for row in journal(run) if row["kind"] == "scene_taken"]
    assert (taken["nodes"], taken["of"]) == (2, 2)
