"""Specs that ask for double handling are told, those that do not are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from slurmtrain.config.double import double_notes
from slurmtrain.core.spec import Environment, Spec, Stop

LIGHTNING = "import torch\nfrom lightning.pytorch import Trainer\nTrainer(plugins=[{}]).fit(model)\n"


def notes(
    tmp_path: Path,
    *command: str,
    script: str = "",
    stop: Stop | None = None,
    setup: tuple[str, ...] = (),
    launcher: Literal["srun", "torchrun"] = "srun",
    **variables: str,
) -> str:
    for name in ("train.py", "run.sbatch"):
        (tmp_path / name).write_text(script)
    spec = Spec(
        command=command, workdir=str(tmp_path), stop=stop or Stop(), launcher=launcher,
        environment=Environment(variables=variables, setup=setup),
    )  # fmt: skip
    return "\n".join(double_notes(spec))


@pytest.mark.parametrize("option", ["--max_restarts=3", "--max-restarts 3"])
def test_restarts_of_torchelastic(tmp_path: Path, option: str) -> None:
    assert "retry.in_place" in notes(tmp_path, "bash", "-c", f"torchrun {option} train.py")
    assert "retry.in_place" in notes(tmp_path, "bash", "run.sbatch", script=f"torchrun {option} train.py\n")
    assert notes(tmp_path, "torchrun", "--max_restarts=0", "train.py") == ""


def test_restarts_that_a_variable_asks_for(tmp_path: Path) -> None:
    command = ("bash", "-c", "torchrun train.py")
    assert "PET_MAX_RESTARTS=3" in notes(tmp_path, *command, PET_MAX_RESTARTS="3")
    assert notes(tmp_path, *command, PET_MAX_RESTARTS="0") == ""
    assert notes(tmp_path, *command, PET_MAX_RESTARTS="a few") == ""
    assert notes(tmp_path, "train.py", launcher="torchrun", PET_MAX_RESTARTS="3") == "", "our --max_restarts=0 counts"


def test_submitit_requeues_on_its_own_signal(tmp_path: Path) -> None:
    by_hand = "from submitit.core.submission import process_job\nprocess_job(folder)\n"
    for command, script in (("submitit.core._submit", ""), ("train", by_hand)):
        told = notes(tmp_path, "python", "train.py", command, script=script)
        assert "submitit saves and requeues its job itself when it gets USR2" in told
        assert notes(tmp_path, "python", "train.py", command, script=script, stop=Stop(signal="none")) == ""
        assert notes(tmp_path, "python", "train.py", command, script=script, SUBMITIT_PREEMPT_SIGNAL="USR1") == ""
    assert notes(tmp_path, "python", "train.py", script="import submitit\nprint(submitit.JobEnvironment())\n") == ""


def test_a_warning_that_a_script_asks_for_in_vain(tmp_path: Path) -> None:
    script = "#!/bin/bash\n#SBATCH --signal=SIGUSR1@90\npython train.py\n"
    assert "stop.warning_s" in notes(tmp_path, "bash", "run.sbatch", script=script)
    assert notes(tmp_path, "bash", "run.sbatch", script=script.replace("#SBATCH", "##SBATCH")) == ""


def test_programs_that_requeue_themselves(tmp_path: Path) -> None:
    assert "submitit" in notes(tmp_path, "python", "-u", "-m", "submitit.core._submit", "/tmp/x")
    called = "subprocess.run(['scontrol', 'requeue', os.environ['SLURM_JOB_ID']])"
    assert "scontrol requeue" in notes(tmp_path, "python", "train.py", script=called)
    assert "scontrol requeue" in notes(tmp_path, "python", "x", setup=("trap 'scontrol requeue $SLURM_JOB_ID' USR1",))
    assert notes(tmp_path, "python", "train.py", script="requeue = 3\n", setup=("scontrol show job 1",)) == ""


@pytest.mark.parametrize(
    ("plugin", "signal", "told"),
    [
        ("", "USR2", False),  # the default of both sides: Lightning never hears USR1
        ("", "USR1", True),
        ("", "SIGUSR1", True),
        ("SLURMEnvironment(auto_requeue=False)", "USR1", False),
        ("SLURMEnvironment(requeue_signal=signal.SIGUSR2)", "USR2", True),
        ("SLURMEnvironment(requeue_signal=signal.SIGHUP)", "USR2", False),
    ],
)
def test_lightning_requeues_on_its_own_signal(tmp_path: Path, plugin: str, signal: str, told: bool) -> None:
    said = notes(tmp_path, "python", "train.py", script=LIGHTNING.format(plugin), stop=Stop(signal=signal))
    assert ("SLURMEnvironment(auto_requeue=False)" in said) is told


def test_a_script_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for word in ("missing.py", "folder.py", "a\0b.py"):
        assert double_notes(Spec(command=("python", word), workdir=str(tmp_path))) == []
