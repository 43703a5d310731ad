"""The scripts as a person reads them: snapshots under tests/data/rendered, and what bash and shellcheck say of them.

After a wanted change: UPDATE_SNAPSHOTS=1 pytest tests/unit/render/test_scripts.py, then read the difference.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from render_support import executable, render

from slurmtrain.core.array import array_task, parse_array
from slurmtrain.core.spec import (
    Component,
    ContainerOptions,
    CoreDumps,
    Environment,
    Resources,
    Spec,
    StageIn,
    StageOut,
    Stop,
)
from slurmtrain.errors import SpecError
from slurmtrain.render.scripts import render_array_script
from slurmtrain.resources import bundled

SNAPSHOTS = Path(__file__).parents[2] / "data" / "rendered"
RUN_DIR = Path("/scratch/ada/slurmtrain/runs/gpt-20261129-1700-1a2b3c")
MANY = Resources(
    nodes=4, tasks_per_node=8, cpus_per_task=12, gpus_per_node=8, memory="0", time_limit="24:00:00", partition="gpu",
    account="llm", qos="long", reservation="may", constraint="h100&nvlink", exclude="n[7,9]", exclusive=True,
    sbatch_options=("--mail-type=FAIL", "--comment=first try"),
)  # fmt: skip
SPECS = {
    "srun": Spec(
        command=("python", "train.py", "--lr", "1e-4", "--name", "it's new"),
        name="gpt",
        workdir="/home/ada/gpt",
        resources=MANY,
        environment=Environment(
            setup=("module load cuda/12.4", "source venv/bin/activate"), variables={"NCCL_DEBUG": "WARN"}
        ),
        srun_options=("--mpi=none",),
    ),
    "torchrun": Spec(
        command=("train.py", "--lr", "1e-4"),
        name="gpt",
        launcher="torchrun",
        workdir="/home/ada/gpt",
        resources=Resources(nodes=2, tasks_per_node=4, cpus_per_task=12, gres="gpu:h100:4", time_limit="2:00:00"),
        torchrun_options=("--log_dir=/tmp/logs",),
    ),
    "cores": Spec(
        command=("python", "train.py"),
        workdir="/home/ada/gpt",
        core_dumps=CoreDumps(enabled=True, size_limit="2G", cuda=True),
        container=ContainerOptions(save=True),
        srun_options=("--container-image=nvcr.io#nvidia/pytorch:24.05-py3",),
    ),
    "primary": Spec(
        command=("python", "train.py"), workdir="/home/ada/gpt", success="primary", stop=Stop(signal="none")
    ),
    "het": Spec(
        command=("python", "train.py"),
        name="gpt",
        workdir="/home/ada/gpt",
        resources=Resources(nodes=2, tasks_per_node=4, gpus_per_node=4, partition="gpu", time_limit="2:00:00"),
        components=(
            Component(tasks_per_node=2, cpus_per_task=8, partition="cpu", constraint="fast", exclusive=True),
            Component(nodes=3, memory="64G"),
        ),
    ),
    "het-torchrun": Spec(
        command=("train.py",),
        launcher="torchrun",
        workdir="/home/ada/gpt",
        resources=Resources(nodes=2, tasks_per_node=4, gpus_per_node=4),
        components=(Component(tasks_per_node=2, cpus_per_task=8, gpus_per_node=2),),
    ),
    "hostile": Spec(
        command=("python", "-c", "print('$(rm -rf x)')\nprint(`id`)", "--", '"; exit'),
        name='$(rm -rf x) "quoted" #1 \\ ünï 🚀 %j',
        workdir="/home/ada/a dir/$(id)",
        environment=Environment(variables={"TEXT": "two\nlines; $(id)"}),
    ),
}


def expect_snapshot(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SPECS)
def test_snapshots(name: str) -> None:
    scripts = render(SPECS[name], RUN_DIR, agent_python="/home/ada/venv/bin/python")
    expect_snapshot(f"{name}.job.sbatch", scripts.batch)
    expect_snapshot(f"{name}.launch.sh", scripts.launch)


def test_snapshots_of_stages() -> None:
    spec = Spec(
        command=("python", "train.py"),
        workdir="/home/ada/gpt",
        resources=Resources(nodes=2),
        environment=Environment(setup=("module load aws",), variables={"BUCKET": "s3://ada"}),
        stage_in=StageIn(("aws s3 sync $BUCKET/data /local/data", "test -e /local/data/index"), "each_node"),
        stage_out=StageOut(('aws s3 sync "$SLURMTRAIN_CHECKPOINT_DIR" $BUCKET/out',)),
    )
    scripts = render(spec, RUN_DIR, agent_python="/home/ada/venv/bin/python")
    assert list(scripts.stages) == ["stage_in", "stage_out"]
    for name, text in scripts.stages.items():
        expect_snapshot(f"{name}.sh", text)
    assert render(SPECS["srun"], RUN_DIR).stages == {}


def test_snapshots_of_an_array_and_of_one_of_its_tasks() -> None:
    spec = Spec(command=("python", "train.py"), name="gpt", workdir="/home/ada/gpt", array="0-6:2%2")
    batch = render_array_script(
        spec,
        group_id=RUN_DIR.name,
        runs=RUN_DIR,
        agent_python="/home/ada/venv/bin/python",
        bundled=bundled("templates"),
    )
    expect_snapshot("array.job.sbatch", batch)
    run_dir = RUN_DIR.with_name(f"{RUN_DIR.name}-4")
    own = dataclasses.replace(spec, array="4")
    task = array_task(parse_array("0-6:2%2"), 4)
    scripts = render(own, run_dir, agent_python="/home/ada/venv/bin/python", array=task)
    expect_snapshot("array-task.job.sbatch", scripts.batch)
    expect_snapshot("array-task.launch.sh", scripts.launch)


@pytest.mark.parametrize("path", sorted(SNAPSHOTS.iterdir()), ids=lambda path: path.name)
def test_bash_and_shellcheck_have_nothing_to_say(path: Path) -> None:
    assert subprocess.run(["/bin/bash", "-n", str(path)], capture_output=True, text=True).stderr == ""
    own = Path(sys.executable).parent / "shellcheck"  # the version that pyproject.toml asks for, before the machine's
    shellcheck = str(own) if own.exists() else str(shutil.which("shellcheck"))
    result = subprocess.run([shellcheck, "--shell=bash", "--exclude=SC1091", str(path)], capture_output=True, text=True)
    assert result.stdout == ""
    assert result.returncode == 0


def test_no_line_is_blank_at_its_end_and_no_block_of_blank_lines_is_left() -> None:
    for path in SNAPSHOTS.iterdir():
        text = path.read_text(encoding="utf-8")
        assert all(line == line.rstrip() for line in text.splitlines()), path
        assert "\n\n\n" not in text, path
        assert text.endswith("\n"), path
        assert not text.endswith("\n\n"), path


class TestOverrides:
    """A site changes one block and keeps the rest."""

    def test_one_block(self, tmp_path: Path) -> None:
        override = (
            '{% extends "bundled/train.sbatch.j2" %}\n{% block constants %}\n{{ super() }}SITE=1\n{% endblock %}\n'
        )
        executable(tmp_path / "train.sbatch.j2", override)
        plain = render(SPECS["srun"], RUN_DIR).batch
        changed = render(SPECS["srun"], RUN_DIR, overrides=[tmp_path]).batch
        assert "SITE=1\n" in changed
        assert [line for line in changed.splitlines() if line != "SITE=1"] == plain.splitlines()

    def test_the_launch_of_one_launcher(self, tmp_path: Path) -> None:
        override = '{% extends "bundled/launch/srun.sh.j2" %}{% block setup %}module purge\n{{ super() }}{% endblock %}'
        executable(tmp_path / "launch" / "srun.sh.j2", override)
        launch = render(SPECS["srun"], RUN_DIR, overrides=[tmp_path]).launch
        assert launch.index("module purge") < launch.index("module load cuda/12.4")
        assert "module purge" not in render(SPECS["torchrun"], RUN_DIR, overrides=[tmp_path]).launch

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("{% block", "cannot be read"),
            ("{{ no_such_value }}", "no_such_value"),
            ('{% extends "bundled/nothing.j2" %}', "bundled/nothing.j2"),
            ("{{ ''.__class__.__mro__ }}", "cannot be rendered"),
            ("{{ 1 // 0 }}", "cannot be rendered"),
        ],
    )
    def test_a_broken_one_is_one_sentence(self, tmp_path: Path, text: str, words: str) -> None:
        executable(tmp_path / "train.sbatch.j2", text)
        with pytest.raises(SpecError, match="template") as caught:
            render(SPECS["srun"], RUN_DIR, overrides=[tmp_path])
        assert words in str(caught.value)
