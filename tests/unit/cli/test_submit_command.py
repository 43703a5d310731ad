"""``submit`` and ``render`` as a person calls them, Slurm's commands played by small scripts."""

# ruff: noqa: E501 - command lines
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SBATCH = """#!/bin/bash
printf '%s\\n' "$@" >>"$T/argv"
/usr/bin/env >"$T/env"
case " $* " in
  *" --test-only "*) echo "sbatch: Job 9 to start at 2026-11-29T17:00:00 using 4 processors on nodes n[1-2] in partition batch" >&2 ;;
  *) echo 4711 ;;
esac
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").write_text(SBATCH)
    (tmp_path / "bin" / "sbatch").chmod(0o755)
    return tmp_path


def run(home: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": f"{home / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(home), "T": str(home), "LANG": "C.UTF-8", **env,
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "slurmtrain", *args], capture_output=True, text=True, timeout=60, cwd=home, env=environ
    )


def test_a_command_line_alone(home: Path) -> None:
    result = run(
        home,
        "submit",
        "-N",
        "2",
        "-n",
        "8",
        "-t",
        "1:00:00",
        "-J",
        "a run",
        "--",
        "bash",
        "-c",
        "echo -N 3 -- $X",
        "--",
        "-x",
    )
    assert result.returncode == 0, result.stderr
    run_id = result.stdout.split()[2]
    assert result.stdout.startswith(f"submitted run {run_id} as job 4711\n")
    folder = home / "slurmtrain" / "runs" / run_id
    assert f"log: {folder}/logs/train-4711.log" in result.stdout
    spec = json.loads((folder / "plan.json").read_text())["spec"]
    assert spec["command"] == ["bash", "-c", "echo -N 3 -- $X", "--", "-x"]
    assert (spec["name"], spec["resources"]["nodes"], spec["resources"]["tasks_per_node"]) == ("a run", 2, 4)
    assert spec["workdir"] == str(home)


def test_a_job_file_with_options_over_it_and_json(home: Path) -> None:
    (home / "job.yaml").write_text("command: [bash, -c, exit]\nresources: {nodes: 2, time_limit: 1:00:00}\n")
    result = run(
        home, "submit", "job.yaml", "-N", "3", "--set", "retry.requeues=7", "--exclusive", "--store", "st", "--json"
    )
    made = json.loads(result.stdout)
    assert made["job_id"] == "4711"
    assert made["run_dir"] == str(home / "st" / "runs" / made["run_id"])
    plan = json.loads((Path(made["run_dir"]) / "plan.json").read_text())
    spec = plan["spec"]
    assert (spec["resources"]["nodes"], spec["resources"]["exclusive"], spec["retry"]["requeues"]) == (3, True, 7)
    assert plan["sources"]["resources.nodes"] == "option --nodes"
    assert plan["sources"]["resources.time_limit"] == "job.yaml:2"
    assert plan["sources"]["retry.requeues"] == "--set retry.requeues"


def test_dry_run_asks_slurm_and_leaves_nothing(home: Path) -> None:
    result = run(home, "submit", "--dry-run", "--", "bash", "-c", "exit")
    assert result.returncode == 0, result.stderr
    assert "nothing was submitted; Slurm would take it: Job 9 to start" in result.stdout
    assert "--test-only" in (home / "argv").read_text()
    assert not (home / "slurmtrain").exists()
    made = json.loads(run(home, "submit", "--dry-run", "--json", "--", "bash", "-c", "exit").stdout)
    assert (made["job_id"], made["dry_run"]) == (None, True)


def test_what_slurm_reads_as_options_never_reaches_sbatch(home: Path) -> None:
    """sbatch lets its environment win over the script's directives: SBATCH_OUTPUT would move the log."""
    leaks = {
        "SBATCH_OUTPUT": "/tmp/x",
        "SBATCH_NO_REQUEUE": "1",
        "SLURM_NTASKS": "3",
        "SLURMTRAIN_RUN_DIR": "/old",
        "SBATCH_QOS": "long",
    }
    result = run(home, "submit", "--json", "--", "bash", "-c", "exit", **leaks)
    assert result.returncode == 0, result.stderr
    seen = (home / "env").read_text().splitlines()
    assert not [line for line in seen if line.startswith(("SBATCH_", "SLURM_", "SLURMTRAIN_"))]
    script = (Path(json.loads(result.stdout)["run_dir"]) / "job.sbatch").read_text()
    assert "#SBATCH --qos=long\n" in script


def test_render_prints_what_submit_would_hand_over(home: Path) -> None:
    result = run(home, "render", "-N", "2", "--launcher", "torchrun", "--", "train.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=2\n" in result.stdout
    launch = run(home, "render", "--launch", "-N", "2", "--launcher", "torchrun", "--", "train.py").stdout
    assert "--rdzv_backend=c10d" in launch
    assert not (home / "slurmtrain").exists()
    assert not (home / "argv").exists()


def test_render_writes_a_whole_run_that_can_be_submitted_by_hand(home: Path) -> None:
    result = run(home, "render", "--out", "mine", "--", "bash", "-c", "exit")
    assert result.returncode == 0, result.stderr
    made = {p.name for p in (home / "mine").iterdir()}
    assert {"job.sbatch", "launch.sh", "agent.pyz", "plan.json", "rules.json", "spec.yaml", "logs", "attempts"} <= made
    assert f"ST_RUN_DIR={home / 'mine'}\n" in (home / "mine" / "job.sbatch").read_text()
    again = run(home, "render", "--out", "mine", "--", "bash", "-c", "exit")
    assert again.returncode == 1
    assert "exists already" in again.stderr


def test_render_spec_is_a_job_file(home: Path) -> None:
    text = run(home, "render", "--spec", "-N", "3", "--", "bash", "-c", "exit").stdout
    (home / "again.yaml").write_text(text)
    result = run(home, "render", "again.yaml")
    assert "#SBATCH --nodes=3\n" in result.stdout


def test_an_override_in_the_users_folder_is_used_and_one_that_others_may_change_is_refused(home: Path) -> None:
    folder = home / ".config" / "slurmtrain" / "templates"
    folder.mkdir(parents=True)
    path = folder / "train.sbatch.j2"
    path.write_text('{% extends "bundled/train.sbatch.j2" %}{% block header %}# mine\n{% endblock %}')
    assert "# mine\n" in run(home, "render", "--", "bash").stdout
    path.chmod(0o666)
    result = run(home, "render", "--", "bash")
    assert result.returncode == 6
    assert f"the user's file {path} is not used: everybody may change {path}" in result.stderr


@pytest.mark.parametrize(
    "name", ["$(touch hacked)", "a'b\"c", "ünï 🚀", "%j %x", "-rf", "--wrap=id", "#SBATCH --wrap=id"]
)
def test_hostile_names_of_runs_and_jobs_files(home: Path, name: str) -> None:
    (home / f"{name}.yaml").write_text("command: [bash, -c, exit]\n")
    result = run(home, "submit", f"./{name}.yaml", f"--job-name={name}", "--json")
    assert result.returncode == 0, result.stderr
    made = json.loads(result.stdout)
    assert made["run_id"].replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert json.loads((Path(made["run_dir"]) / "plan.json").read_text())["spec"]["name"] == name
    assert not (home / "hacked").exists()
    assert [p.name for p in (home / "slurmtrain" / "runs").iterdir()] == [made["run_id"]]


def test_the_link_under_which_a_person_sees_the_directory_is_kept(home: Path) -> None:
    """/home/ada may be a link to a mount that differs between nodes."""
    (home / "real").mkdir()
    (home / "link").symlink_to(home / "real")
    environ = {
        "PATH": f"{home / 'bin'}:/usr/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "PWD": str(home / "link"),
    }
    result = subprocess.run(
        [sys.executable, "-m", "slurmtrain", "render", "--", "bash"],
        cwd=home / "link",
        env=environ,
        capture_output=True,
        text=True,
    )
    assert f"#SBATCH --chdir={home / 'link'}\n" in result.stdout


SINFO = """#!/bin/bash
echo "$@" >>"$T/sinfo"
for n in 1 2 3 4 5 6; do printf 'n%s|idle|batch*|(null)|none\\n' $n; done
printf 'n6|idle|small|(null)|none\\n'
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["-N", "2000", "-p", "batch"],
            "it asks for 2000 nodes, and partition batch has 6: as it is, such a job never starts",
        ),
        (["-N", "2000"], "it asks for 2000 nodes, and of the partitions batch has 6, small has 1:"),
        (["-N", "7", "-p", "batch,small"], "it asks for 7 nodes, and of the partitions batch has 6, small has 1:"),
        (["-N", "6", "-p", "batch,small"], ""),
        (["-N", "2000", "-p", "elsewhere"], ""),  # sbatch says so itself
        (["-N", "4", "-p", "small"], None),  # one question more for each small job of a campaign would be too many
    ],
)
def test_more_nodes_than_there_are_is_said(home: Path, words: list[str], said: str | None) -> None:
    sinfo = home / "bin" / "sinfo"
    sinfo.write_text(SINFO)
    sinfo.chmod(0o755)
    result = run(home, "submit", *words, "--", "true")
    assert result.returncode == 0, result.stderr
    assert ("never starts" in result.stderr) is bool(said)
    assert (said or "") in result.stderr
    asked = home / "sinfo"
    assert (len(asked.read_text().splitlines()) if asked.exists() else 0) == (0 if said is None else 1)


def test_a_project_folder_that_is_not_used_is_said(home: Path) -> None:
    (home / "work" / ".slurmtrain" / "formats").mkdir(parents=True)
    said = "has no slurmtrain.toml beside it, so it is not used: make one, an empty file will do"
    words = ("submit", "--", "true")
    environ = {"PATH": f"{home / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(home), "T": str(home)}
    for made in (False, True):
        if made:
            (home / "work" / "slurmtrain.toml").touch()
        done = subprocess.run(
            [sys.executable, "-m", "slurmtrain", *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=home / "work",
            env=environ,
        )
        assert done.returncode == 0, done.stderr
        assert (f"{home}/work/.slurmtrain {said}" in done.stderr) is not made


@pytest.mark.parametrize("words", [(), ("--array", "0-1")])
def test_a_dry_run_tries_all_that_the_run_would_keep(home: Path, words: tuple[str, ...]) -> None:
    formats = home / ".config" / "slurmtrain" / "formats"
    formats.mkdir(parents=True)
    (formats / "mine.py").write_text("def matches(path):\n    return False\n")
    for more in ((), ("--dry-run",)):
        done = run(home, "submit", *words, *more, "--", "true")
        assert done.returncode == 5, done.stdout
        assert (
            "mine.py: the format mine does not load: KeyError: 'check'; it needs matches(path) and check(path, deep)"
            in done.stderr
        )
        assert not (home / "argv").exists(), "Slurm was asked"
