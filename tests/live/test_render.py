"""Rendered scripts meet a real Slurm: its parser of directives, its file names, its argument passing, its refusals."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, wait_until
from runs import PYTHON, slurmtrain

HOSTILE = [
    "$(touch hacked)", "`touch hacked`", "a'b\"c", "back\\slash", "# no comment", "ünï 🚀", "%j %x %%", "two  spaces ",
    "--wrap=id", "hetjob", "a;b|c&d", "~/x", "*",
]  # fmt: skip
# Writes down what a rank was given, then ends.
SHOW = """import json, os, sys
rank = os.environ["RANK"]
json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "affinity": len(os.sched_getaffinity(0))},
          open(os.path.join(os.environ["SHOW_DIR"], rank + ".json"), "w"))
"""


def own(store: Path, path: Path) -> Path:
    os.chown(path, store.stat().st_uid, store.stat().st_gid)
    return path


def folder(store: Path, name: str) -> Path:
    (store / name).mkdir()
    return own(store, store / name)


def write(store: Path, name: str, text: str) -> Path:
    path = store / name
    path.write_text(text, encoding="utf-8")
    return own(store, path)


def job_file(store: Path, **spec: Any) -> str:
    return str(write(store, f"job-{time.monotonic_ns()}.yaml", json.dumps({"command": ["true"], **spec})))


def fails(cluster: Cluster, store: Path, *words: str, env_store: Path | None = None) -> tuple[int, str]:
    done = slurmtrain(cluster, env_store or store, *words, check=False, timeout_s=120)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def runs_in(store: Path) -> list[str]:
    return sorted(p.name for p in (store / "runs").iterdir()) if (store / "runs").exists() else []


SHAPES = {
    "plain": {},
    "everything": {
        "name": "all of it", "launcher": "srun", "success": "primary",
        "resources": {
            "nodes": 2, "tasks_per_node": 2, "cpus_per_task": 2, "gpus_per_node": 1, "memory": "1G",
            "time_limit": "1:00:00", "exclusive": True, "sbatch_options": ["--comment=first # try", "--nice=5"],
        },
    },
    "torchrun": {
        "launcher": "torchrun", "command": ["train.py"],
        "resources": {"nodes": 2, "tasks_per_node": 2, "gres": "gpu:2"},
    },
    "unlimited": {"resources": {"time_limit": "UNLIMITED"}},
    "short": {"resources": {"time_limit": 1}},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_sbatch_accepts_what_is_rendered(cluster: Cluster, store: Path, shape: str) -> None:
    spec = json.loads(json.dumps(SHAPES[shape]))
    spec.setdefault("resources", {})["partition"] = cluster.partition()
    done = slurmtrain(cluster, store, "submit", "--dry-run", job_file(store, **spec))
    assert "Slurm would take it: Job" in done.stdout
    assert runs_in(store) == []


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_arrives_in_slurm_as_it_was(cluster: Cluster, store: Path, name: str) -> None:
    held = {"partition": cluster.partition(), "sbatch_options": ["--hold"]}
    done = slurmtrain(cluster, store, "submit", "--json", job_file(store, name=name, resources=held))
    job_id = json.loads(done.stdout)["job_id"]
    assert cluster.slurm("squeue", "-h", "-j", job_id, "-o", "%j") == f"{name}\n"
    assert not list(store.rglob("hacked"))


@pytest.mark.nodes(2)
def test_arguments_variables_and_directories_arrive_on_every_rank(cluster: Cluster, store: Path) -> None:
    show = write(store, "show.py", SHOW)
    out, workdir = folder(store, "out"), folder(store, "a dir $(touch hacked) %j 'q'")
    arguments = [*HOSTILE, "", "two\nlines", "-x", "--", "1e-4"]
    spec = {
        "name": "args",
        "command": [PYTHON, str(show), *arguments],
        "workdir": str(workdir),
        "resources": {
            "nodes": 2, "tasks_per_node": 2, "cpus_per_task": 2, "partition": cluster.partition(), "time_limit": 5,
        },
        "environment": {
            "variables": {"SHOW_DIR": str(out), "TEXT": "it's $(touch hacked)\n`x`"},
            "setup": ["export MADE=\"$(echo made)\"", "export LD_LIBRARY_PATH=/opt/mine:$LD_LIBRARY_PATH"],
        },
    }  # fmt: skip
    strange = folder(store, "st ore %j $(touch hacked)")
    env = {"LD_LIBRARY_PATH": "/opt/user lib", "RUN_DIR": "mine"}
    done = cluster.as_user(
        "slurmtrain", "submit", "--json", job_file(store, **spec), "--store", strange, env=env, cwd=store
    )
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    log = Path(made["run_dir"]) / "logs" / f"train-{made['job_id']}.log"
    try:
        wait_until(lambda: len(list(out.glob("*.json"))) == 4, 60, "all four ranks wrote what they saw")
    except AssertionError as exc:
        raise AssertionError(f"{exc}\n{log.read_text() if log.exists() else 'no log'}") from exc
    cluster.wait_state(int(made["job_id"]), "COMPLETED", timeout_s=60)
    seen = {int(p.stem): json.loads(p.read_text()) for p in out.glob("*.json")}
    assert sorted(seen) == [0, 1, 2, 3]
    for rank, facts in seen.items():
        assert facts["argv"] == arguments
        assert facts["cwd"] == str(workdir)
        env = facts["env"]
        assert env["TEXT"] == "it's $(touch hacked)\n`x`"
        assert (env["MADE"], env["RUN_DIR"], env["LD_LIBRARY_PATH"]) == ("made", "mine", "/opt/mine:/opt/user lib")
        assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == ("4", "2")
        assert (env["LOCAL_RANK"], env["NODE_RANK"]) == (str(rank % 2), str(rank // 2))
        assert env["SLURM_CPUS_PER_TASK"] == "2"
        assert env["SLURMTRAIN_RUN_DIR"] == made["run_dir"]
    assert len({facts["env"]["MASTER_PORT"] for facts in seen.values()}) == 1
    assert log.exists()
    assert not list(store.rglob("hacked"))


class TestRefusals:
    def test_a_partition_that_does_not_exist(self, cluster: Cluster, store: Path) -> None:
        before = cluster.jobs()
        code, said = fails(cluster, store, "submit", "-p", "nonesuch", "--", "true")
        assert code == 1
        assert "nothing was submitted: " in said
        assert "nvalid partition name" in said
        assert cluster.partition() in said.partition("partitions here: ")[2]
        assert runs_in(store) == []
        assert len(cluster.jobs()) == len(before)

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (["-A", "nonesuch"], None), (["-w", "nonode"], 1), (["-C", "nofeature"], 1),
            (["--gres", "gpu:nonesuch:1"], 1), (["--reservation", "nonesuch"], 1), (["--mem", "900T"], 1),
        ],
    )  # fmt: skip
    def test_what_slurm_cannot_give(
        self, cluster: Cluster, store: Path, words: Sequence[str], code: int | None
    ) -> None:
        partition = [] if "-p" in words else ["-p", cluster.partition()]
        got, said = fails(cluster, store, "submit", *words, *partition, "--", "true")
        if code is None and got == 0:
            pytest.skip("this cluster does not check accounts")
        assert got == (code or 1)
        assert "nothing was submitted: " in said
        assert runs_in(store) == []

    def test_a_store_that_cannot_be_written(self, cluster: Cluster, store: Path) -> None:
        locked = store / "locked"
        locked.mkdir(mode=0o755)
        code, said = fails(cluster, store, "submit", "--store", str(locked / "x"), "--", "true")
        assert code == 1
        assert "Permission denied; see --store" in said
        assert list(locked.iterdir()) == []

    def test_options_of_the_environment_cannot_move_the_log_or_switch_requeue_off(
        self, cluster: Cluster, store: Path
    ) -> None:
        env = {
            "SBATCH_OUTPUT": str(store / "moved"),
            "SBATCH_NO_REQUEUE": "1",
            "SBATCH_OPEN_MODE": "truncate",
            "SBATCH_SIGNAL": "USR1@5",
        }
        done = cluster.as_user(
            "slurmtrain", "submit", "--json", "--store", store / "st", "-p", cluster.partition(), "-t", "5",
            "--", "sleep", "20",
            env=env, cwd=store,
        )  # fmt: skip
        made = json.loads(done.stdout)
        facts = cluster.show_job(int(made["job_id"]))
        assert facts["StdOut"] == f"{made['run_dir']}/logs/train-{made['job_id']}.log"
        assert facts["Requeue"] == "1"


@pytest.mark.whole_cluster
class TestOutages:
    def test_a_dead_controller_leaves_nothing(self, cluster: Cluster, store: Path) -> None:
        cluster.kill_daemon("slurmctld")
        try:
            code, said = fails(cluster, store, "submit", "-p", cluster.partition(), "--", "true")
        finally:
            cluster.start_daemon("slurmctld")
        assert code == 4
        assert "nothing was submitted: " in said
        assert runs_in(store) == []

    def test_a_controller_that_hangs_keeps_the_run_and_it_trains_once(self, cluster: Cluster, store: Path) -> None:
        """sbatch gives up; slurmctld reads the request from its socket when it wakes, and the job exists after all."""
        count = store / "count"
        spec = {
            "command": ["bash", "-c", f"echo x >>{shlex.quote(str(count))}"],
            "resources": {"partition": cluster.partition(), "time_limit": 5},
        }
        cluster.stop_daemon("slurmctld")
        try:
            code, said = fails(cluster, store, "submit", job_file(store, **spec))
        finally:
            cluster.cont_daemon("slurmctld")
        assert code == 4
        assert "did not say whether it took the job" in said
        [run_id] = runs_in(store)
        assert run_id in said
        wait_until(count.exists, 90, "the job that slurmctld found in its socket trains")
        wait_until(lambda: not cluster.jobs("-t", "RUNNING,PENDING,COMPLETING"), 60, "its job is gone")
        assert count.read_text() == "x\n"
        row = json.loads(slurmtrain(cluster, store, "status", run_id, "--json").stdout)[0]
        assert row["state"] == "Completed"


def test_without_its_agent_the_training_runs_once_and_its_end_is_recorded(cluster: Cluster, store: Path) -> None:
    count = store / "count"
    spec = {
        "command": ["bash", "-c", f"echo x >>{shlex.quote(str(count))}; exit 3"],
        "resources": {"partition": cluster.partition(), "time_limit": 5, "sbatch_options": ["--hold"]},
    }
    made = json.loads(slurmtrain(cluster, store, "submit", "--json", job_file(store, **spec)).stdout)
    run_dir, job_id = Path(made["run_dir"]), int(made["job_id"])
    (run_dir / "agent.pyz").write_bytes(b"this is no zip file")
    cluster.slurm("scontrol", "release", str(job_id))
    cluster.wait_state(job_id, "FAILED", timeout_s=60)
    assert count.read_text() == "x\n"
    record = json.loads((run_dir / "attempts" / f"fallback-{job_id}-0.json").read_text())
    assert (record["exit_code"], record["restart_count"], record["job_id"]) == (3, 0, str(job_id))
    assert "the agent cannot run on" in (run_dir / "logs" / f"train-{job_id}.log").read_text()
    assert cluster.show_job(job_id)["ExitCode"] == "3:0"
