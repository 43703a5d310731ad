"""Programs that requeue or restart themselves inside of a run: Slurm's accounting has one requeue for each ending."""

from __future__ import annotations

from pathlib import Path

import pytest
from attack import companions
from cluster import Cluster
from own_starts import drain, finish, place, starts, wait_starts
from runs import submit, trainer

pytestmark = [pytest.mark.timeout(600), pytest.mark.native_only]
NO_RETRIES = {"requeues": 0, "in_place": 0}


def notes(cluster: Cluster, store: Path) -> str:
    """What ``render`` says about the same job file."""
    done = cluster.as_user("slurmtrain", "render", str(store / "t.yaml"), env={"SLURMTRAIN_STORE": str(store)})
    assert done.returncode == 0, done.stderr
    return str(done.stderr)


@pytest.mark.nodes(2)
def test_submitit_requeues_by_itself_and_slurmtrain_does_not_once_more(
    cluster: Cluster, store: Path, framework_python: Path
) -> None:
    run = submit(
        cluster, store, [str(framework_python), place(store, "double.py"), "submitit"], nodes=1, retry=NO_RETRIES,
        stop={"node_look_s": 3},
    )  # fmt: skip
    wait_starts(run, 1)
    drain(cluster, run)
    wait_starts(run, 2)
    finish(run)
    assert run.ended_states() == ["REQUEUED", "COMPLETED"], run.log()[-4000:]
    first, second = starts(run)
    assert (first["launch"], second["launch"]) == ("0.0", "1.0")
    assert second["step"] > 0, "submitit had saved"
    decision = run.decisions()[0]
    assert (decision["action"], decision["cause"], decision["budget"]) == ("requeue", "drain", "none")
    assert "the training requeued the job itself" in decision["reason"]
    assert "submitit saves and requeues its job itself when it gets USR2" in notes(cluster, store)


@pytest.mark.nodes(2)
def test_torchrun_restarts_its_ranks_and_slurmtrain_requeues_once(
    cluster: Cluster, store: Path, torch_python: Path
) -> None:
    torchrun = [str(torch_python), "-m", "torch.distributed.run", "--nproc_per_node=2", "--max_restarts=3"]
    run = submit(
        cluster, store, [*torchrun, place(store, "double.py"), "elastic"], nodes=1, retry=NO_RETRIES,
        stop={"node_look_s": 3}, resources={"memory": "3G"}, checkpoint={"pattern": "step-*.json"},
    )  # fmt: skip
    wait_starts(run, 1)
    (run.workdir / "die").touch()
    wait_starts(run, 2)
    drain(cluster, run)
    wait_starts(run, 3)
    finish(run)
    assert run.ended_states() == ["REQUEUED", "COMPLETED"], run.log()[-4000:]
    assert [row["launch"] for row in starts(run)] == ["0.0", "0.0", "1.0"], "the second by torchrun alone"
    assert starts(run)[2]["step"] > 0
    assert [(d["action"], d["cause"]) for d in run.decisions()] == [("requeue", "drain"), ("complete", "no_failure")]
    assert "--max_restarts=3 starts a failed training 3 more times" in notes(cluster, store)


@pytest.mark.nodes(2)
def test_lightning_requeues_on_its_signal_and_slurmtrain_does_not_once_more(
    cluster: Cluster, store: Path, framework_python: Path
) -> None:
    """Without our callback, everything at Lightning's default; USR1 comes from us, then from a person."""
    run = submit(
        cluster, store, [str(framework_python), place(store, "frameworks.py"), "alone"], nodes=1, retry=NO_RETRIES,
        stop={"node_look_s": 3, "signal": "USR1"}, resources={"memory": "3G"}, checkpoint={"pattern": "*.ckpt"},
    )  # fmt: skip
    wait_starts(run, 1)
    drain(cluster, run)
    wait_starts(run, 2)
    cluster.as_user("scancel", "--signal=USR1", str(run.job_id))
    wait_starts(run, 3)
    finish(run)
    assert run.ended_states() == ["REQUEUED", "REQUEUED", "COMPLETED"], run.log()[-4000:]
    assert [row["launch"] for row in starts(run)] == ["0.0", "1.0", "2.0"]
    assert 0 < starts(run)[1]["step"] < starts(run)[2]["step"], "Lightning had saved each time"
    assert [(d["action"], d["cause"]) for d in run.decisions()][:2] == [("requeue", "drain"), ("requeue", "preempted")]
    assert "requeued by its training or by a person" in run.decisions()[1]["reason"]
    assert "Lightning requeues the job itself when it gets USR1" in notes(cluster, store)


@pytest.mark.parametrize("name", ["USR2", "TERM"])
def test_a_signal_of_a_persons_that_makes_the_training_save_and_leave_is_no_end_of_the_run(
    cluster: Cluster, store: Path, name: str
) -> None:
    """`scancel -s USR2` is how people ask for a checkpoint: exit code 0 is not "finished" then."""
    run = submit(cluster, store, trainer(store, "--steps", "150", "--checkpoint-every", "5"), nodes=2)
    run.wait_step(10)
    cluster.as_user("scancel", f"--signal={name}", str(run.job_id))
    run.wait_started(2)
    before = run.newest_step()
    run.wait_step(before + 30)  # about as long as a companion that was told to end stays at most, from the signal on
    assert sorted(process.node for process in companions(run)) == sorted(cluster.job(run.job_id).nodes)  # type: ignore[union-attr]
    run.wait_state("Completed")
    assert run.ended_states() == ["COMPLETED"]
    assert run.newest_step() == 150
    assert run.starts() == ["0.0", "0.1"]
    assert {row["launch"] for row in run.records("signal")} == {"0.0"}, "what is started again hears nothing of it"
    assert "a signal that was not slurmtrain's" in run.log()
    assert "the scene of launch" not in run.log(), "nothing has failed"


def test_usr1_to_the_batch_script_ends_nothing(cluster: Cluster, store: Path) -> None:
    """What `--signal=B:USR1@90` of other launchers does; the shell would die of it."""
    run = submit(cluster, store, trainer(store, "--steps", "80", "--checkpoint-every", "5"), nodes=1)
    run.wait_step(10)
    cluster.as_user("scancel", "--batch", "--signal=USR1", str(run.job_id))
    run.wait_state("Completed")
    assert run.ended_states() == ["COMPLETED"]
    assert run.starts() == ["0.0"]
