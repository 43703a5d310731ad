"""Attacks on a running run: what starts it is killed, Slurm falls silent, files are damaged. Seen from outside.

Each asserts that the training never ran twice at once, that nothing was lost, and that the run came to its right end.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attack import batch_side, companions, crash_once, kill, launches_alive, steady, watch_launches
from cluster import Cluster, wait_until
from programs.place import assert_whole
from runs import submit

NOW = {"delay_s": 0}
REQUEUED_AT_ONCE = {"in_place": 0, "delay_s": 0}


def test_a_killed_agent_leaves_no_second_training_and_no_second_companions(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store), nodes=2)
    run.wait_step(10)
    kill(run, "agent")
    watch_launches(run, 4)
    wait_until(lambda: len(companions(run)) == 2, 30, "one companion for each node")
    watch_launches(run, 1)
    assert len(companions(run)) == 2
    run.wait_state("Completed")
    assert run.starts() == ["0.0", "0.1"]
    assert run.records("start")[-1]["step"] >= 10
    assert_whole(run.checkpoints, 60)


def test_an_agent_killed_while_the_environment_is_set_up(cluster: Cluster, store: Path) -> None:
    """launch.sh has not come to its srun yet: it must not do so later, beside the next launch."""
    run = submit(cluster, store, steady(store, 20), nodes=2, environment={"setup": ["sleep 4"]})
    wait_until(lambda: batch_side(run, "launch"), 60, "launch.sh runs")
    kill(run, "agent")
    run.wait_state("Completed")
    assert run.starts() == ["0.1"]


@pytest.mark.parametrize("moment", [0.05, 0.4, 2.0])
def test_a_killed_srun_does_not_leave_its_ranks_beside_the_next_launch(
    cluster: Cluster, store: Path, moment: float
) -> None:
    run = submit(cluster, store, steady(store), nodes=2, retry=NOW)
    wait_until(lambda: batch_side(run, "srun"), 60, "srun runs")
    time.sleep(moment)
    kill(run, "srun")
    watch_launches(run, 5)
    run.wait_state("Completed")
    starts = [(row["launch"], row["rank"]) for row in run.records("start")]
    assert len(starts) == len(set(starts))
    assert_whole(run.checkpoints, 60)


@pytest.mark.native_only
def test_an_agent_killed_between_its_decision_and_the_requeue(cluster: Cluster, store: Path) -> None:
    """The next agent carries out what was decided; nobody watches."""
    slow = store / "bin"
    slow.mkdir()
    tool = slow / "scontrol"
    tool.write_text(
        f'#!/bin/bash\n[ "$1" = requeue ] && {{ echo $$ >{store}/pid; sleep 30; }}\nexec scontrol.real "$@"\n'
    )
    tool.chmod(0o755)
    (slow / "scontrol.real").symlink_to("/usr/bin/scontrol")
    slow.chmod(0o755)
    (store / "pid").touch()
    (store / "pid").chmod(0o666)
    real = cluster.user_env
    cluster.user_env = lambda: {**real(), "PATH": f"{slow}:{real()['PATH']}"}  # type: ignore[method-assign]
    try:
        run = submit(cluster, store, steady(store, 30, *crash_once(15)), nodes=2, retry=REQUEUED_AT_ONCE)
    finally:
        del cluster.user_env  # type: ignore[method-assign]
    wait_until((store / "pid").read_text, 60, "the requeue is under way")
    tool.write_text('#!/bin/bash\nexec scontrol.real "$@"\n')
    kill(run, "agent")
    os.kill(int((store / "pid").read_text()), signal.SIGKILL)
    run.wait_state("Completed", timeout_s=90)
    run.wait_slurm("COMPLETED")
    assert cluster.job(run.job_id).restarts == 1  # type: ignore[union-attr]
    assert run.starts() == ["0.0", "1.0"]
    assert_whole(run.checkpoints, 30)


@pytest.mark.whole_cluster
@pytest.mark.parametrize("how", ["exit 0", "crash"])
def test_slurmctld_is_silent_when_a_launch_ends(cluster: Cluster, store: Path, how: str) -> None:
    """The job waits for it, decides then, and loses nothing: no watcher runs."""
    more = crash_once(15) if how == "crash" else ()
    run = submit(cluster, store, steady(store, 20, *more), nodes=2, retry=REQUEUED_AT_ONCE)
    run.wait_step(5)
    cluster.stop_daemon("slurmctld")
    time.sleep(20)
    assert not run.decisions(), "without Slurm's word nothing is decided"
    cluster.cont_daemon("slurmctld")
    run.wait_state("Completed", timeout_s=150)
    assert_whole(run.checkpoints, 20)
    assert run.starts() == (["0.0", "1.0"] if how == "crash" else ["0.0"])


@pytest.mark.parametrize("on_stop", ["default", "save"])
def test_a_requeue_by_hand_goes_on_without_a_budget(cluster: Cluster, store: Path, on_stop: str) -> None:
    command = steady(store, 60, "--on-stop", on_stop, "--stop-exit", "1")
    run = submit(cluster, store, command, nodes=2, retry={"requeues": 0, "in_place": 0})
    run.wait_step(10)
    cluster.as_user("scontrol", "requeue", str(run.job_id))
    run.wait_state("Completed", timeout_s=90)
    assert run.starts() == ["0.0", "1.0"]
    assert_whole(run.checkpoints, 60)


def test_a_stop_that_comes_between_two_launches_starts_no_other(cluster: Cluster, store: Path) -> None:
    progress = ': >"$SLURMTRAIN_CHECKPOINT_DIR/step-$(date +%s%3N)"'
    code = f'echo "$SLURMTRAIN_LAUNCH" >>starts; sleep 0.3; {progress}; kill -SEGV $$'
    run = submit(cluster, store, ["bash", "-c", code], nodes=1, retry={"in_place": 5, "delay_s": 60})
    wait_until(lambda: "before the next try" in run.log(), 60, "the agent waits before a launch")
    before = (run.workdir / "starts").read_text()
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped", timeout_s=20)
    assert (run.workdir / "starts").read_text() == before


@pytest.mark.parametrize("companion", [True, False])
def test_each_rank_hears_the_stop_signal_once(cluster: Cluster, store: Path, companion: bool) -> None:
    stop = {"grace_s": 2, "warning_s": 4}
    command = steady(store, 600, "--on-stop", "note")
    run = submit(cluster, store, command, nodes=2, ranks=2, companion=companion, stop=stop)
    run.wait_step(5)
    run.slurmtrain("stop", run.run_id)
    run.wait_state("Stopped")
    heard = sorted(row["rank"] for row in run.records("signal") if row["signal"] == "SIGUSR2")
    assert heard == [0, 1, 2, 3]


def test_the_primary_ends_the_others_with_grace(cluster: Cluster, store: Path) -> None:
    """No rank is left on the batch host: the others are asked by TERM all the same, and the run is completed."""
    code = 'if [ $RANK = 0 ]; then sleep 2; else trap "echo heard TERM; exit 0" TERM; while :; do sleep 0.1; done; fi'
    run = submit(cluster, store, ["bash", "-c", code], nodes=2, success="primary", stop={"grace_s": 5})
    run.wait_state("Completed")
    assert "1: heard TERM" in run.log()


def test_a_moved_time_limit_is_noticed(cluster: Cluster, store: Path) -> None:
    run = submit(cluster, store, steady(store, 450), nodes=1, time_limit="1", stop={"warning_s": 30})
    run.wait_step(5)
    cluster.slurm("scontrol", "update", f"JobId={run.job_id}", "TimeLimit=10")
    run.wait_state("Completed", timeout_s=90)
    assert run.starts() == ["0.0"]


@pytest.mark.native_only
def test_a_lost_nodes_ranks_do_not_train_beside_the_next_attempt(cluster: Cluster, store: Path) -> None:
    """slurmd dies and its job's processes live on, while Slurm gives the job to another node."""
    run = submit(cluster, store, steady(store, 3000), nodes=1)
    run.wait_step(10)
    cluster.kill_slurmd(cluster.job(run.job_id).nodes[0])  # type: ignore[union-attr]
    wait_until(lambda: len(run.starts()) == 2, 120, "the next attempt starts")
    wait_until(lambda: launches_alive(run) == {"1.0"}, 10, "the old ranks are gone")


@pytest.mark.whole_cluster
@pytest.mark.native_only
def test_exit_codes_by_which_slurm_requeues_are_not_used(cluster: Cluster, store: Path) -> None:
    conf = Path(cluster.facts["slurm_conf"])
    before = conf.read_text()
    conf.write_text(f"{before}\nRequeueExit=42\nRequeueExitHold=40-41,43\n")
    cluster.slurm("scontrol", "reconfigure")
    try:
        for code in (42, 43):
            retry = {"requeues": 0, "in_place": 0}
            run = submit(cluster, store, ["bash", "-c", f"exit {code}"], name=f"e{code}", nodes=1, retry=retry)
            run.wait_state("Failed")
            run.wait_slurm("FAILED")
            time.sleep(3)
            job = cluster.job(run.job_id)
            assert job is not None
            assert (job.state, job.restarts) == ("FAILED", 0)
    finally:
        conf.write_text(before)
        cluster.slurm("scontrol", "reconfigure")


def test_a_store_in_which_nothing_can_be_claimed_trains_once_and_is_resolved_later(
    cluster: Cluster, store: Path
) -> None:
    """Also when the agent dies meanwhile: its training is ended before the next one starts."""
    code = "echo $SLURM_PROCID >>starts; for i in 1 2 3 4 5 6 7 8; do sleep 0.5; done"
    later = {"sbatch_options": ["--begin=now+4"]}
    run = submit(cluster, store, ["bash", "-c", code], nodes=2, resources=later)
    folders = [run.path / "attempts", run.path / "submissions"]
    owner = run.path.stat()
    for folder in folders:
        os.chown(folder, 0, 0)
    wait_until((run.workdir / "starts").exists, 60, "the training starts all the same")
    time.sleep(1)
    kill(run, "agent")
    time.sleep(1)
    watch_launches(run, 1)
    run.wait_slurm("COMPLETED")
    assert len((run.workdir / "starts").read_text().split()) == 4
    for folder in folders:
        os.chown(folder, owner.st_uid, owner.st_gid)
    run.watch_once()
    run.wait_state("Completed")


def test_damaged_files_never_end_a_training_twice(cluster: Cluster, store: Path) -> None:
    """Torn decision, rules that are none, a journal file of somebody else, a log that was emptied."""
    run = submit(cluster, store, steady(store, 60, *crash_once(40)), nodes=1, retry=NOW)
    run.wait_step(20)
    (run.path / "rules.json").write_text('{"rules": [{"na')
    (run.path / "attempts/000/decision.json").write_text('{"act')
    (run.path / "journal/root.jsonl").mkdir()
    (run.path / f"logs/train-{run.job_id}.log").write_text("")
    for name in ("loop", "step-99 $(touch x)\n7"):
        (run.checkpoints / f"{name}.part").symlink_to(f"{name}.part")
    run.wait_slurm("COMPLETED")
    assert_whole(run.checkpoints, 60)
    assert run.starts() == ["0.0", "0.1"]
    assert [d["action"] for d in run.decisions()] == ["complete"]
    (run.path / "journal/root.jsonl").rmdir()
    run.wait_state("Completed")


@pytest.mark.needs_accounting
def test_three_watchers_at_once_make_one_new_job(cluster: Cluster, store: Path) -> None:
    """Without their lease, after slurmctld has forgotten the job."""
    run = submit(cluster, store, steady(store, 60), nodes=1)
    run.wait_step(5)
    kill(run, "shell")  # Slurm ends the others of the batch step with it
    wait_until(lambda: cluster.job(run.job_id) is None, 150, "slurmctld has forgotten the job")
    time.sleep(16)
    code = (
        "import sys, pathlib; from slurmtrain.watch.loop import Watcher; from slurmtrain.hosts.local import LocalHost;"
        "from slurmtrain.slurm.cli_client import CliSlurmClient as C;"
        "Watcher(pathlib.Path(sys.argv[1]), C(LocalHost()), 60.0).look_once()"
    )
    python = f"{cluster.facts['venv']}/bin/python"
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: cluster.as_user(python, "-c", code, str(store)), range(3)))
    watch_launches(run, 3)
    run.wait_state("Completed", timeout_s=90)
    assert run.starts() == ["0.0", "1.0"]
    assert_whole(run.checkpoints, 60)
    assert len(list(run.path.glob("submissions/[0-9]*.json"))) == 2
