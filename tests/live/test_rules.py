"""A person's own rules decide in the job: packs of the project's folder, frozen at submission, read by the agent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cluster import Cluster
from runs import LiveRun, submit

RULES = """
[[rule]]
id = "flat"
outcome = "FailJob"
metric = { pattern = 'val_acc=([0-9.]+)', op = "not-rising", value = 0.01, times = 20 }
hit = ["epoch 1 val_acc=0.1"]
miss = ["epoch 1"]

[[rule]]
id = "never-again"
outcome = "FailJob"
exit_code = [42]
state = ["FAILED"]

[[rule]]
id = "machine"
outcome = "Ignore"
cause = "license_unavailable"
pattern = 'no seat for feature \\w+'
exit_code = [43]
hit = ["no seat for feature hpc"]
miss = ["seat for feature hpc granted"]
"""


def own_rules(store: Path) -> None:
    """A project with a pack beside its slurmtrain.toml."""
    owner = store.stat()
    folder = store / ".slurmtrain" / "rules"
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text(RULES)
    (store / "slurmtrain.toml").write_text("")
    for path in (store / "slurmtrain.toml", store / ".slurmtrain", folder, folder / "mine.toml"):
        os.chown(path, owner.st_uid, owner.st_gid)


def launches(run: LiveRun) -> int:
    return run.log().count("slurmtrain: === attempt ")


@pytest.mark.timeout(300)
def test_a_metric_that_gets_no_better_ends_the_run_while_it_runs(cluster: Cluster, store: Path) -> None:
    own_rules(store)
    program = (
        "import time\nfor n in range(9000): print(f'epoch {n} val_acc={min(n, 9) / 20}', flush=True); time.sleep(0.1)"
    )
    run = submit(cluster, store, ["/usr/bin/python3", "-c", program], nodes=1, stop={"grace_s": 5})
    row = run.wait_state("Failed", timeout_s=200)
    run.wait_slurm("FAILED")
    assert "flat" in row["reason"]
    assert launches(run) == 1
    assert "epoch 8999" not in run.log()
    assert not run.rank_processes()
    assert "flat" in run.slurmtrain("explain", run.run_id).stdout


@pytest.mark.docker_too
@pytest.mark.timeout(300)
def test_an_exit_code_that_is_never_to_be_retried(cluster: Cluster, store: Path) -> None:
    own_rules(store)
    run = submit(cluster, store, ["/bin/sh", "-c", "echo step 1; exit 42"], nodes=1)
    row = run.wait_state("Failed")
    assert "never-again" in row["reason"]
    assert launches(run) == 1


@pytest.mark.timeout(300)
def test_a_cause_that_is_ignored_uses_no_budget_and_is_tried_again(cluster: Cluster, store: Path) -> None:
    own_rules(store)
    again = 'if [ -e tried ]; then echo done; exit 0; fi; touch tried; echo "E: no seat for feature hpc"; exit 43'
    run = submit(cluster, store, ["/bin/sh", "-c", again], nodes=1, retry={"in_place": 0, "requeues": 0, "delay_s": 0})
    run.wait_state("Completed", timeout_s=200)
    assert "license_unavailable" in run.slurmtrain("explain", run.run_id, "--json").stdout
    assert launches(run) == 2
