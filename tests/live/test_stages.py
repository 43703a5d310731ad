"""``stage_in`` and ``stage_out`` on a real Slurm: where they run, and what becomes of them when they are cut off."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import LiveRun, submit, trainer

pytestmark = pytest.mark.timeout(600)

FAST = {"delay_s": 1}


def _short(store: Path) -> list[str]:
    return trainer(store, "--steps", "10", "--pace", "0.05", "--checkpoint-every", "5")


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def _stage_processes(run: LiveRun, stage: str) -> list:  # type: ignore[type-arg]
    return [p for p in run.cluster.processes(run.job_id) if p.environ.get("SLURMTRAIN_STAGE") == stage]


def _kill_all(run: LiveRun, stage: str) -> None:
    """SIGKILL of batch script, agent and stage at once: nobody in the job can decide."""
    shells = [p for p in run.cluster.processes(run.job_id) if not p.in_step]
    doomed = [p for p in shells if any("slurm_script" in w for w in p.argv) or "attempt" in p.argv]
    assert len(doomed) >= 2, [p.argv for p in shells]
    for process in (*doomed, *_stage_processes(run, stage)):
        run.cluster.signal_process(process, signal.SIGKILL)


@pytest.mark.docker_too
@pytest.mark.nodes(2)
def test_both_stages_are_seen_and_done_once(cluster: Cluster, store: Path) -> None:
    stage_in = {"run": [f"echo $SLURMD_NODENAME >>{store}/in", "sleep 6"], "on": "each_node"}
    stage_out = {
        "run": ["sleep 6", f'cp "$SLURMTRAIN_CHECKPOINT_DIR"/step-* {store}/', f"echo $SLURMTRAIN_RESULT >>{store}/out"]
    }
    run = submit(cluster, store, _short(store), stage_in=stage_in, stage_out=stage_out)
    row = wait_until(lambda: (r := run.status())["stage"] == "stage_in" and r, 60, "stage_in is shown")
    assert row["state"] == "Starting"
    assert row["vocabulary"]["sagemaker"] == {"primary": "InProgress", "secondary": "Downloading"}
    assert not run.starts()
    row = wait_until(lambda: (r := run.status())["stage"] == "stage_out" and r, 60, "stage_out is shown")
    assert row["state"] == "Running"
    assert row["vocabulary"]["sagemaker"]["secondary"] == "Uploading"
    run.wait_state("Completed")
    run.wait_slurm("COMPLETED")
    assert run.ended_states() == ["COMPLETED"]
    assert len(set(_lines(store / "in"))) == len(_lines(store / "in")) == 2, "once on each node"
    assert _lines(store / "out") == ["completed"]
    assert list(store.glob("step-*"))
    assert run.starts() == ["0.0"]


def test_a_stage_in_that_fails_is_tried_again_without_a_launch(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/in; [ $(wc -l <{store}/in) -ge 3 ]"
    run = submit(cluster, store, _short(store), nodes=1, stage_in={"run": [line]}, retry=FAST)
    run.wait_state("Completed")
    assert _lines(store / "in") == ["try"] * 3
    assert run.ended_states() == ["COMPLETED"]
    assert run.starts() == ["0.0"]


def test_a_stage_in_that_no_retry_cures_ends_the_run(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/in; exit 93"
    run = submit(cluster, store, _short(store), nodes=1, stage_in={"run": [line]}, retry=FAST)
    run.wait_state("Failed")
    run.wait_slurm("FAILED")
    assert _lines(store / "in") == ["try"]
    assert run.starts() == []


def test_a_failed_upload_is_held_and_released_without_another_training(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/out; test -e {store}/open"
    run = submit(cluster, store, _short(store), nodes=1, stage_out={"run": [line]}, retry=FAST)
    row = run.wait_state("Held")
    assert "the training has finished" in row["reason"]
    assert _lines(store / "out") == ["try"] * 3
    cluster.as_user("touch", f"{store}/open")
    run.slurmtrain("release", run.run_id)
    run.wait_state("Completed")
    assert _lines(store / "out") == ["try"] * 4
    assert run.starts() == ["0.0"], "trained once"
    assert_whole(run.checkpoints, 10)


def test_killed_in_mid_upload_it_only_uploads_again(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/out; [ $(wc -l <{store}/out) -ge 2 ] || sleep 300"
    run = submit(cluster, store, _short(store), nodes=1, stage_out={"run": [line]})
    wait_until(lambda: _lines(store / "out"), 90, "the upload begins")
    _kill_all(run, "stage_out")
    run.wait_slurm("FAILED", "CANCELLED")
    run.watch_once()
    run.wait_state("Completed")
    assert _lines(store / "out") == ["try"] * 2
    assert run.starts() == ["0.0"], "trained once"
    assert len(run.ended_states()) == 2


def test_an_agent_killed_in_mid_stage_in_begins_it_anew(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/in; [ $(wc -l <{store}/in) -ge 2 ] || sleep 300"
    run = submit(cluster, store, _short(store), nodes=1, stage_in={"run": [line], "on": "each_node"})
    wait_until(lambda: _lines(store / "in"), 60, "the stage begins")
    (agent,) = [p for p in cluster.processes(run.job_id) if "attempt" in p.argv and not p.in_step]
    first = {p.pid for p in _stage_processes(run, "stage_in")}
    cluster.signal_process(agent, signal.SIGKILL)
    run.wait_state("Completed")
    assert _lines(store / "in") == ["try"] * 2
    assert not first & {p.pid for p in cluster.processes(run.job_id)}, "what the dead agent had started was ended"
    assert run.ended_states() == ["COMPLETED"]
    assert run.starts() == ["0.0"]


def test_a_stop_ends_a_stage_in_at_once(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, _short(store), nodes=1, stage_in={"run": [f"touch {store}/in", "sleep 300"]})
    wait_until((store / "in").exists, 60, "the stage begins")
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped", timeout_s=60)
    run.wait_slurm("FAILED", "COMPLETED", "CANCELLED")
    wait_until(lambda: not cluster.processes(run.job_id), 20, "nothing of it is left")
    assert run.starts() == []


def test_the_time_limit_in_mid_upload_costs_no_training(cluster: Cluster, store: Path) -> None:
    line = f"echo try >>{store}/out; [ $(wc -l <{store}/out) -ge 2 ] || sleep 300"
    stop = {"warning_s": 20}
    run = submit(cluster, store, _short(store), nodes=1, stage_out={"run": [line]}, time_limit="1", stop=stop)
    run.wait_state("Completed", timeout_s=240)
    assert run.ended_states() == ["REQUEUED", "COMPLETED"]
    assert _lines(store / "out") == ["try"] * 2
    assert run.starts() == ["0.0"]
    assert run.decisions()[0]["budget"] == "none"
