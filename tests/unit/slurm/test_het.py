"""Heterogeneous jobs: one record for all components, steps and signals of each, ranks from srun's task numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.core.components import task_offsets
from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import parse_job_state
from slurmtrain.core.spec import Component, Resources, Spec
from slurmtrain.errors import JobNotFoundError
from slurmtrain.hosts.local import LocalHost
from slurmtrain.slurm.client import JobRecord
from slurmtrain.slurm.commands import build_companion_srun
from slurmtrain.slurm.het_client import HetSlurmClient
from slurmtrain.slurm.parse import join_components
from slurmtrain.slurm.srun_messages import parse_rank_exits

SPEC = Spec(
    command=("x",),
    resources=Resources(nodes=2, tasks_per_node=2),
    components=(Component(), Component(tasks_per_node=3)),
)
# As Slurm 22.05 prints it: rank 4 of the world, task 0 of the second component, fails.
SAID = """\
srun: error: gpu3: task 0: Segmentation fault
srun: error: gpu[1-2]: tasks 0-3: Terminated
srun: error: cpu9: tasks 0-2: Terminated
""".splitlines()

GONE = "Job/step already completing or completed"


def test_srun_counts_per_component_and_ranks_go_on() -> None:
    offsets = task_offsets(SPEC, "gpu[1-2],gpu3,cpu9")
    assert offsets == {"gpu1": 0, "gpu2": 0, "gpu3": 4, "cpu9": 5}
    exits = parse_rank_exits(SAID, offsets)
    assert [(end.rank, end.node, end.signal) for end in exits][:2] == [(4, "gpu3", 11), (0, None, 15)]
    assert sorted(end.rank or 0 for end in exits) == list(range(8))


def test_a_plain_job_and_a_torn_node_list_have_no_offsets() -> None:
    assert task_offsets(Spec(command=("x",)), "n[1-4]") == {}
    assert task_offsets(SPEC, "n[1-") == {}
    assert [end.rank for end in parse_rank_exits(SAID[:1], {})] == [0]


def record(job_id: JobId, nodes: str, count: int, **more: str) -> JobRecord:
    return JobRecord(job_id, parse_job_state("RUNNING"), nodes=nodes, node_count=count, **more)  # type: ignore[arg-type]


def test_the_leader_stands_for_all_components() -> None:
    leader, second = (
        record(JobId(47), "n[1-2]", 2, partition="gpu"),
        record(JobId(47, None, 1), "n9", 1, partition="cpu"),
    )
    other = record(JobId(50), "n5", 1, partition="gpu")
    joined = {one.job_id: one for one in join_components([second, leader, other])}
    assert (joined[JobId(47)].nodes, joined[JobId(47)].node_count) == ("n[1-2],n9", 3)
    assert joined[JobId(47)].partition == "gpu,cpu"
    assert joined[JobId(47, None, 1)] == second
    assert joined[JobId(50)] == other


def test_companions_are_one_step_over_all_components() -> None:
    argv = build_companion_srun([2, 1], ["agent"])
    cut = argv.index(":")
    assert argv[1] == "--het-group=0"
    assert argv[cut + 1] == "--het-group=1"
    assert argv[:cut].count("agent") == argv[cut:].count("agent") == 1
    assert ":" not in build_companion_srun([4], ["agent"])
    assert not any(word.startswith("--het-group") for word in build_companion_srun([4], ["agent"]))


class TestSteps:
    """``squeue -s`` and ``scancel`` of a stand-in that knows step 0 of both components, and step 3 of the second."""

    @pytest.fixture
    def client(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HetSlurmClient:
        steps = 'case "$*" in *"-j 47 "*) echo "47.0|";; *"-j 48 "*) printf "48.0|\\n48.3|\\n";; esac\n'
        cancel = (
            f'echo "$3" >>{tmp_path}/signals\ncase $3 in 47.0|48.0|48.3) ;; '
            f'*) echo "scancel: error: Kill job error on job step id $3: {GONE}" >&2; exit 1;; esac\n'
        )
        for name, text in (("squeue", steps), ("scancel", cancel)):
            path = tmp_path / name
            path.write_text("#!/bin/bash\n" + text)
            path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return HetSlurmClient(LocalHost(), [JobId(47), JobId(48)])

    def test_steps_of_all_components(self, client: HetSlurmClient) -> None:
        assert client.steps(JobId(47)) == ["0", "3"]

    def test_a_signal_goes_to_each(self, client: HetSlurmClient, tmp_path: Path) -> None:
        client.signal_step(JobId(47), "0", "TERM")
        client.signal_step(JobId(47), "3", "KILL")
        assert (tmp_path / "signals").read_text().split() == ["47.0", "48.0", "47.3", "48.3"]
        with pytest.raises(JobNotFoundError):
            client.signal_step(JobId(47), "7", "KILL")
