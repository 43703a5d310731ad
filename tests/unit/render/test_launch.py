"""launch.sh run by a real bash: what reaches srun, what reaches the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from render_support import SHOW, executable, fake_slurm, read, render, run_launch

from slurmtrain.core.spec import Environment, Resources, Spec

arguments = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60)


def spec_of(*command: str, **more: object) -> Spec:
    return Spec(command=command, workdir="/", **more)


def launch(folder: Path, spec: Spec, run_name: str = "run-1", **env: str) -> subprocess.CompletedProcess[str]:
    (folder / run_name).mkdir(exist_ok=True)
    return run_launch(render(spec, folder / run_name).launch, folder, {**fake_slurm(folder), **env})


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    args=st.lists(arguments, max_size=4),
    value=arguments,
    run_name=st.sampled_from(["r", "a b", "$(id)", "x'y", "-r", "ü%j"]),
)
def test_any_argument_and_any_variable_reaches_the_program(
    tmp_path: Path, args: list[str], value: str, run_name: str
) -> None:
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    spec = spec_of(sys.executable, str(show), *args, environment=Environment(variables={"VALUE": value}))
    result = launch(tmp_path, spec, run_name)
    assert result.returncode == 0, result.stderr
    seen = read(tmp_path / "show.json")
    assert seen["argv"] == args
    assert seen["env"]["VALUE"] == value
    assert seen["env"]["SLURMTRAIN_RUN_DIR"] == str(tmp_path / run_name)


def test_nothing_of_a_hostile_job_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "hacked"
    bad = f"$(touch {marker}); touch {marker} `touch {marker}` ' \" \n touch {marker}"
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    spec = spec_of(
        sys.executable,
        str(show),
        bad,
        environment=Environment(variables={"BAD": bad}),
        srun_options=(f"--comment={bad}",),
    )
    launch(tmp_path, spec, "$(touch hacked)")
    assert not marker.exists()
    assert read(tmp_path / "show.json")["argv"] == [bad]


def test_each_rank_knows_its_place(tmp_path: Path) -> None:
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    spec = spec_of(sys.executable, str(show), resources=Resources(nodes=2, tasks_per_node=2, cpus_per_task=3))
    rank = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    result = launch(tmp_path, spec, FAKE_RANK=json.dumps(rank), SLURMTRAIN_MASTER_PORT="23456")
    assert result.returncode == 0, result.stderr
    env = read(tmp_path / "show.json")["env"]
    wanted = {
        "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1",
        "MASTER_ADDR": "localhost", "MASTER_PORT": "23456",
        "SLURM_EXPORT_ENV": "ALL", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1",
    }  # fmt: skip
    assert {name: env.get(name) for name in wanted} == wanted
    options = [word for word in read(tmp_path / "srun.json")["argv"] if word.startswith("--")]
    assert {
        "--nodes=2",
        "--ntasks=4",
        "--ntasks-per-node=2",
        "--cpus-per-task=3",
        "--kill-on-bad-exit=1",
        "--label",
    } <= set(options)


def test_the_rank_process_is_the_program_itself_so_that_signals_reach_it(tmp_path: Path) -> None:
    program = "import os, sys; print(os.getpid(), open('/proc/self/cmdline').read().split(chr(0))[0])"
    result = launch(tmp_path, spec_of(sys.executable, "-c", program))
    assert result.stdout.split()[1] == sys.executable
    process = subprocess.Popen(["true"])
    process.wait()
    assert abs(process.pid - int(result.stdout.split()[0])) < 10_000


def test_a_port_of_its_own_for_every_launch_below_the_ephemeral_ones(tmp_path: Path) -> None:
    ports = set()
    for launch_number in range(3):
        for restart in range(2):
            env = {"SLURMTRAIN_LAUNCH": str(launch_number), "SLURM_RESTART_COUNT": str(restart)}
            result = launch(tmp_path, spec_of("bash", "-c", "echo $MASTER_PORT"), **env)
            ports.add(int(result.stdout))
    assert len(ports) == 6
    assert all(20000 <= port < 32768 for port in ports)


def test_the_library_path_comes_back_as_it_was(tmp_path: Path) -> None:
    show = 'printf \'%s|%s|%s\\n\' "$LD_LIBRARY_PATH" "${SLURMTRAIN_SAVED_LD_LIBRARY_PATH-gone}" "${LD_AUDIT-unset}"'
    result = launch(tmp_path, spec_of("bash", "-c", show), SLURMTRAIN_SAVED_LD_LIBRARY_PATH="/opt/my libs:/x")
    assert result.stdout == "/opt/my libs:/x|gone|unset\n"


ADDED = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_EXPORT_ENV",
    "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_STEP_NUM_TASKS",
    "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE",
}  # fmt: skip


def test_the_environment_arrives_as_it_was_and_nothing_of_the_scripts_leaks_into_it(tmp_path: Path) -> None:
    show = tmp_path / "show.py"
    show.write_text(SHOW)
    names = ["name", "saved", "code", "rank", "launch", "restart", "main", "RUN_DIR", "AGENT", "checkpoint_dir", "args"]
    mine = {name: f"mine {name}" for name in names} | {"SHELLOPTS": "braceexpand:errexit:nounset"}
    result = launch(tmp_path, spec_of(sys.executable, str(show)), **mine)
    assert result.returncode == 0, result.stderr
    env = read(tmp_path / "show.json")["env"]
    assert {name: env[name] for name in names} == {name: mine[name] for name in names}
    added = set(env) - set(mine) - set(fake_slurm(tmp_path)) - ADDED
    assert all(name.startswith("SLURMTRAIN_") for name in added), added


def test_a_setup_line_that_fails_ends_the_launch_with_a_sentence(tmp_path: Path) -> None:
    """Or the training would run in a wrong environment, for days."""
    setup = ("true", "source ~/nope/bin/activate", "echo not reached")
    result = launch(tmp_path, spec_of("bash", "-c", "echo trained", environment=Environment(setup=setup)))
    assert result.returncode != 0
    assert "slurmtrain: line 2 of environment.setup failed with exit code 1" in result.stdout
    assert "not reached" not in result.stdout
    assert "trained" not in result.stdout


def test_setup_lines_are_run_as_they_are_and_may_change_everything(tmp_path: Path) -> None:
    setup = ('greet() { echo "hello $1"; }', "export MADE=\"$(greet 'you')\"", "MASTER_ADDR=10.1.2.3")
    spec = spec_of(
        "bash", "-c", "echo $MADE $MASTER_ADDR $A", environment=Environment(setup=setup, variables={"A": "b"})
    )
    assert launch(tmp_path, spec).stdout == "hello you 10.1.2.3 b\n"


def test_the_agent_can_add_options_to_srun(tmp_path: Path) -> None:
    launch(tmp_path, spec_of("true"), SLURMTRAIN_SRUN_ARGS="--exclude=n[3,5] --overlap")
    assert read(tmp_path / "srun.json")["argv"][-7:-5] == ["--exclude=n[3,5]", "--overlap"]


def test_outside_an_allocation_it_says_so_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    env = fake_slurm(tmp_path)
    del env["SLURM_JOB_ID"]
    result = run_launch(render(spec_of("true"), tmp_path / "r").launch, tmp_path, env)
    assert result.returncode != 0
    assert "inside a Slurm allocation" in result.stderr
    assert not (tmp_path / "srun.json").exists()


def test_a_working_directory_that_is_gone_ends_the_launch(tmp_path: Path) -> None:
    result = launch(tmp_path, Spec(command=("true",), workdir=str(tmp_path / "gone")))
    assert result.returncode == 1
    assert "gone" in result.stderr
    assert not (tmp_path / "srun.json").exists()


@pytest.mark.parametrize("exit_code", [0, 3, 127])
def test_the_exit_code_is_the_programs(tmp_path: Path, exit_code: int) -> None:
    assert launch(tmp_path, spec_of("bash", "-c", f"exit {exit_code}")).returncode == exit_code


class TestTorchrun:
    def run(self, folder: Path, *command: str, **more: object) -> list[str]:
        """The words with which torchrun was called on node 1."""
        catch = '#!/bin/bash\nprintf \'%s\\0\' "$0" "$@" >"$SHOW_OUT"\n'
        for name in ("torchrun", "python"):
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(catch)
            path.chmod(0o755)
        spec = spec_of(*command, launcher="torchrun", resources=Resources(nodes=2, tasks_per_node=4), **more)
        env = {"SLURM_RESTART_COUNT": "2", "SLURMTRAIN_LAUNCH": "1", "SLURMTRAIN_MASTER_PORT": "20007"}
        result = launch(folder, spec, FAKE_RANK='{"SLURM_PROCID": "1", "SLURM_NODEID": "1"}', **env)
        assert result.returncode == 0, result.stderr
        return (folder / "show.json").read_text().split("\0")[:-1]

    def test_a_script(self, tmp_path: Path) -> None:
        words = self.run(tmp_path, "train.py", "--lr", "1e-4", "a b", torchrun_options=("--log_dir=/x y",))
        assert words == [
            str(tmp_path / "bin" / "torchrun"), "--node_rank=1", "--nnodes=2", "--nproc_per_node=4",
            "--rdzv_backend=c10d", "--rdzv_id=4711_2_1", "--rdzv_endpoint=localhost:20007",
            "--max_restarts=0", "--tee=3", "--log_dir=/x y",
            "train.py", "--lr", "1e-4", "a b",
        ]  # fmt: skip

    def test_an_interpreter_keeps_its_place(self, tmp_path: Path) -> None:
        words = self.run(tmp_path, "python", "-m", "my.train", "--x")
        assert words[:4] == [str(tmp_path / "bin" / "python"), "-m", "torch.distributed.run", "--node_rank=1"]
        assert words[-3:] == ["-m", "my.train", "--x"]

    def test_one_task_a_node(self, tmp_path: Path) -> None:
        self.run(tmp_path, "train.py")
        options = read(tmp_path / "srun.json")["argv"]
        assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(options)


class TestPrimary:
    """success: primary: rank 0's shell stays to tell that it ended well."""

    def spec(self, script: str) -> Spec:
        return spec_of(sys.executable, "-c", script, success="primary")

    def test_its_success_is_told(self, tmp_path: Path) -> None:
        done = tmp_path / "primary-done"
        assert launch(tmp_path, self.spec("pass"), SLURMTRAIN_PRIMARY_DONE=str(done)).returncode == 0
        assert done.exists()

    def test_its_failure_is_not(self, tmp_path: Path) -> None:
        done = tmp_path / "primary-done"
        assert launch(tmp_path, self.spec("raise SystemExit(9)"), SLURMTRAIN_PRIMARY_DONE=str(done)).returncode == 9
        assert not done.exists()

    def test_another_ranks_success_is_not(self, tmp_path: Path) -> None:
        done = tmp_path / "primary-done"
        env = {"SLURMTRAIN_PRIMARY_DONE": str(done), "FAKE_RANK": '{"SLURM_PROCID": "1"}'}
        assert launch(tmp_path, self.spec("pass"), **env).returncode == 0
        assert not done.exists()

    def test_signals_go_on_to_it(self, tmp_path: Path) -> None:
        """A program that leaves with 0 on USR2: the shell must neither die of it nor lose the code."""
        script = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGUSR2, lambda *a: sys.exit(0))\n"
            "os.kill(os.getppid(), signal.SIGUSR2)\n"
            "time.sleep(20); sys.exit(5)"
        )
        done = tmp_path / "primary-done"
        result = launch(tmp_path, self.spec(script), SLURMTRAIN_PRIMARY_DONE=str(done))
        assert result.returncode == 0, result.stderr
        assert done.exists()

    def test_it_can_still_be_interrupted(self, tmp_path: Path) -> None:
        script = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
        result = launch(tmp_path, self.spec(script))
        assert "KeyboardInterrupt" in result.stderr

    def test_a_death_by_signal_is_told_as_such(self, tmp_path: Path) -> None:
        assert launch(tmp_path, self.spec("import os; os.kill(os.getpid(), 9)")).returncode == 137


def test_pythons_error_files_have_a_place_of_their_own(tmp_path: Path) -> None:
    result = launch(tmp_path, spec_of("bash", "-c", "echo $TORCHELASTIC_ERROR_FILE"), SLURMTRAIN_LAUNCH_DIR="/run/l")
    assert result.stdout == "/run/l/error-rank-0.json\n"


def test_it_leaves_no_trace_of_us_in_the_path(tmp_path: Path) -> None:
    result = launch(tmp_path, spec_of("bash", "-c", "echo $PATH"))
    assert result.stdout.strip() == fake_slurm(tmp_path)["PATH"]
    assert os.defpath in result.stdout


OLD, NEW = "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"


@pytest.mark.parametrize(
    ("how", "torch", "warns"),
    [("python", "2.13.0", False), ("python", "2.9.0+cu128", False), ("python", "2.8.0", True),
     ("python", "2.5.1", True), ("python", "3.0", False), ("torchrun", "2.10.1", False), ("torchrun", "2.7.1", True),
     ("env", "2.4", True), ("script", "2.13.0", False), ("script", "2.6.0", True), ("python", "", False),
     ("another", "2.6.0", True), ("another", "", False)],
)  # fmt: skip
def test_the_flight_recorder_is_switched_on_by_the_names_that_this_torch_knows(
    tmp_path: Path, how: str, torch: str, warns: bool
) -> None:
    """Torch's own Python is the one that the command, or torchrun's first line, names; else one that is in the PATH.

    torch 2.9 warns in each rank of an old name that is set (``getCvarInt`` in c10d/Utils.hpp), and older ones do not
    know the new one. Of what nobody can tell the new names are given. Each launch waits for it: of the command's own
    Python nothing is asked twice, and no other is asked after it.
    """
    site, asked = tmp_path / "site", tmp_path / "asked"
    (site / (f"torch-{torch}.dist-info" if torch else "torchvision-0.9.dist-info")).mkdir(parents=True)
    knows = f'#!/bin/bash\necho "$1" >>{asked}\nPYTHONPATH={site} exec {sys.executable} "$@"\n'
    python = executable(tmp_path / "venv" / "bin" / "python3", knows)
    path, more = f"{tmp_path / 'bin'}:/usr/bin:/bin", {}
    command: tuple[str, ...]
    if how == "python":
        command = (str(python), "train.py")
    elif how == "torchrun":
        executable(tmp_path / "bin" / "torchrun", f"#!{python}\n")
        command, more = ("train.py",), {"launcher": "torchrun"}
    elif how == "env":
        executable(tmp_path / "bin" / "accelerate", "#!/usr/bin/env mypython\n")
        executable(tmp_path / "bin" / "mypython", knows)
        command = ("accelerate", "launch")
    elif how == "another":
        executable(tmp_path / "bin" / "python", knows)
        command = ("bash", "-c", "python train.py")
    else:
        command = (str(executable(tmp_path / "train", f"#!{python} -u\n")),)
    spec = spec_of(*command, **more)
    launch(tmp_path, spec, SLURMTRAIN_LAUNCH_DIR=str(tmp_path), PATH=path)
    env = read(tmp_path / "srun.json")["env"]
    assert env[NEW] == "2000"
    assert env["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/flight-rank-"
    assert (OLD in env, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" in env) == (warns, warns)
    assert asked.read_text().split().count("-c") == 1
