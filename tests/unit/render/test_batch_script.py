"""job.sbatch run by a real bash, with small programs in the agent's place: who is started, signalled, told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from render_support import executable, render

from slurmtrain.core.spec import Spec, Stop
from slurmtrain.ops.ended import FIRST_LINE

# Written in Python, run in the place of the interpreter that runs agent.pyz.
HEAD = f"""#!{sys.executable}
import os, signal, sys, time
folder = os.environ["T"]
def note(text):
    with open(folder + "/seen", "a") as file:
        file.write(text + "\\n")
def shake(word):
    with open(os.environ["SLURMTRAIN_HANDSHAKE"], "a") as file:
        file.write(word + "\\n")
note("agent " + " ".join(sys.argv[1:]))
"""
LISTENING = """
signal.signal(signal.SIGUSR2, lambda *a: note("agent got USR2"))
signal.signal(signal.SIGTERM, lambda *a: note("agent got TERM"))
shake("started")
note("listening")
"""


class Job:
    """One execution of the batch script on a pretended node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        (self.run_dir / "attempts").mkdir(parents=True)
        self.spec = Spec(command=("x",), workdir="/")
        self.patch: dict[str, str] = {}
        self.env = {"PATH": os.defpath + ":/usr/bin", "T": str(folder), "SLURM_JOB_ID": "77", "TMPDIR": str(folder)}
        self.process: subprocess.Popen[str] | None = None
        self.launch('note() { echo "$1" >>"$T/seen"; }; note launch; exit 0')

    def agent(self, body: str) -> None:
        executable(self.folder / "python", HEAD + body)

    def launch(self, body: str) -> None:
        executable(self.run_dir / "launch.sh", "#!/bin/bash\n" + body)

    def start(self, python: str | None = None) -> None:
        script = render(self.spec, self.run_dir, agent_python=python or str(self.folder / "python")).batch
        for old, new in self.patch.items():
            assert old in script
            script = script.replace(old, new)
        path = self.folder / "job.sbatch"
        path.write_text(script)
        self.process = subprocess.Popen(
            ["/bin/bash", str(path)], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
        )

    def end(self) -> tuple[int, str]:
        """Exit code and output behind the first line, by which the watcher knows that the execution has begun."""
        assert self.process is not None
        out, _ = self.process.communicate(timeout=60)
        first, _, rest = out.partition("\n")
        assert first.startswith(FIRST_LINE.format(job_id=77, restart_count=0)), out
        return self.process.returncode, rest

    def run(self, python: str | None = None) -> tuple[int, str]:
        self.start(python)
        return self.end()

    def wait_for(self, line: str) -> None:
        deadline = time.monotonic() + 20
        while line not in self.seen():
            assert time.monotonic() < deadline, f"{line!r} not in {self.seen()}"
            time.sleep(0.01)

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def seen(self) -> list[str]:
        path = self.folder / "seen"
        return path.read_text().splitlines() if path.exists() else []

    def record(self) -> dict:
        return json.loads((self.run_dir / "attempts" / "fallback-77-0.json").read_text())

    def leftovers(self) -> list[str]:
        return [p.name for p in self.folder.iterdir() if p.name.startswith(".slurmtrain.")]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.parametrize("code", [0, 1, 5, 127, 143, 255])
def test_the_agents_last_word_is_the_jobs_exit_code(job: Job, code: int) -> None:
    job.agent(f'shake("started"); shake("exit {code}"); sys.exit(3)')
    assert job.run() == (code, "")
    assert job.seen() == [f"agent -I {job.run_dir}/agent.pyz attempt {job.run_dir}"]
    assert job.leftovers() == []


def test_without_an_interpreter_the_training_runs_once_and_the_end_is_recorded(job: Job) -> None:
    job.launch('echo launch >>"$T/seen"; exit 9')
    code, out = job.run(python="/nowhere/python")
    assert code == 9
    assert job.seen() == ["launch"]
    assert "the agent cannot run on" in out
    record = job.record()
    wanted = {"job_id": "77", "restart_count": 0, "exit_code": 9, "stop_sent": False, "terminated": False}
    assert {key: record[key] for key in wanted} == wanted
    assert 0 <= record["ended"] - record["started"] <= 30
    assert abs(record["ended"] - time.time()) < 60
    assert [p.name for p in (job.run_dir / "attempts").iterdir()] == ["fallback-77-0.json"]


def test_an_agent_that_breaks_before_it_started_is_replaced_by_the_plain_launch(job: Job) -> None:
    job.agent("sys.exit(1)")
    assert job.run()[0] == 0
    assert len(job.seen()) == 2
    assert job.seen()[1] == "launch"


def test_an_agent_that_was_killed_is_started_again_and_the_training_is_not(job: Job) -> None:
    job.agent(
        'shake("started")\n'
        'if not os.path.exists(folder + "/second"):\n'
        '    open(folder + "/second", "w").close(); os.kill(os.getpid(), 9)\n'
        'shake("exit 0")'
    )
    code, out = job.run()
    assert code == 0
    assert len(job.seen()) == 2
    assert "launch" not in job.seen()
    assert "the agent died (exit code 137)" in out


def test_an_agent_that_dies_each_time_is_given_up_and_nothing_is_trained_twice(job: Job) -> None:
    job.agent('shake("started"); os.kill(os.getpid(), 9)')
    assert job.run()[0] == 137
    assert len(job.seen()) == 4
    assert "launch" not in job.seen()


def test_an_agent_that_is_killed_while_it_starts_is_tried_again_first(job: Job) -> None:
    job.agent("os.kill(os.getpid(), 11)")
    assert job.run()[0] == 0
    assert [line.split()[0] for line in job.seen()] == ["agent"] * 4 + ["launch"]


def test_an_agent_with_a_traceback_is_started_again(job: Job) -> None:
    """It had started, so launches may exist: the next agent recovers them, the plain launch must not."""
    job.agent('shake("started"); sys.exit(70)')
    assert job.run()[0] == 70
    assert "launch" not in job.seen()


@pytest.mark.parametrize("name", ["USR2", "TERM"])
def test_a_signal_goes_on_to_the_agent_and_the_script_lives(job: Job, name: str) -> None:
    job.agent(LISTENING + 'time.sleep(0.5); shake("exit 4")')
    job.start()
    job.wait_for("listening")
    job.send(getattr(signal, f"SIG{name}"))
    assert job.end()[0] == 4
    assert f"agent got {name}" in job.seen()


def test_a_storm_of_signals_loses_no_exit_code(job: Job) -> None:
    job.agent(LISTENING + 'end = time.time() + 1\nwhile time.time() < end: time.sleep(0.01)\nshake("exit 6")')
    job.start()
    job.wait_for("listening")
    for _ in range(60):
        job.send(signal.SIGUSR2)
        job.send(signal.SIGCONT)
        time.sleep(0.01)
    assert job.end()[0] == 6


def test_a_signal_before_the_agent_listens_does_not_kill_it(job: Job) -> None:
    job.agent('note("starting"); time.sleep(0.5)\n' + LISTENING + 'shake("exit 0")')
    job.start()
    job.wait_for("starting")
    job.send(signal.SIGUSR2)
    job.send(signal.SIGTERM)
    assert job.end()[0] == 0
    assert "launch" not in job.seen()


def test_signals_are_the_agents_to_set_and_its_children_are_born_without_them(job: Job) -> None:
    """Signals ignored at its start would stay ignored in every child, srun included, if it set no handlers."""
    job.agent(
        LISTENING
        + (
            "import subprocess\n"
            'argv = ["/bin/grep", "SigIgn", "/proc/self/status"]\n'
            "mask = subprocess.run(argv, capture_output=True, text=True).stdout\n"
            'note(mask.split()[1]); shake("exit 0")'
        )
    )
    job.run()
    ignored = int(job.seen()[-1], 16)
    assert not ignored >> (signal.SIGUSR2 - 1) & 1
    assert not ignored >> (signal.SIGTERM - 1) & 1


def test_after_term_nothing_is_started_any_more(job: Job) -> None:
    job.agent('note("dying"); time.sleep(0.5); sys.exit(1)')
    job.start()
    job.wait_for("dying")
    job.send(signal.SIGTERM)
    assert job.end()[0] == 1
    assert "launch" not in job.seen()


class TestFallback:
    NOTE = 'note() { echo "$1" >>"$T/seen"; }\n'

    def test_the_warning_reaches_the_launch_as_the_stop_signal_and_as_a_file(self, job: Job) -> None:
        job.launch(self.NOTE + 'trap "note usr1; test -e $SLURMTRAIN_STOP_FILE && note file" USR1; note ready\n'
                   "for i in $(seq 100); do sleep 0.05; done; exit 0")  # fmt: skip
        job.spec = Spec(command=("x",), workdir="/", stop=Stop(signal="USR1"))
        job.start("/nowhere")
        job.wait_for("ready")
        job.send(signal.SIGUSR2)
        assert job.end()[0] == 0
        assert {"usr1", "file"} <= set(job.seen())
        assert job.record()["stop_sent"] is True

    def test_term_never_reaches_the_launch_because_srun_would_kill_its_tasks(self, job: Job) -> None:
        job.launch(self.NOTE + 'trap "note term" TERM; note ready; for i in $(seq 20); do sleep 0.05; done; exit 3')
        job.start("/nowhere")
        job.wait_for("ready")
        job.send(signal.SIGTERM)
        assert job.end()[0] == 3
        assert "term" not in job.seen()
        assert job.record()["terminated"] is True

    def test_torchrun_is_told_by_the_file_alone(self, job: Job) -> None:
        job.spec = Spec(command=("t.py",), launcher="torchrun", workdir="/")
        job.launch(self.NOTE + 'note ready; while [ ! -e "$SLURMTRAIN_STOP_FILE" ]; do sleep 0.05; done; note file')
        job.start("/nowhere")
        job.wait_for("ready")
        job.send(signal.SIGUSR2)
        assert job.end()[0] == 0
        assert job.seen()[-1] == "file"

    @pytest.mark.parametrize("marker", ["done", "stop"])
    def test_a_run_that_is_over_is_not_started(self, job: Job, marker: str) -> None:
        (job.run_dir / marker).touch()
        assert job.run("/nowhere")[0] == 0
        assert job.seen() == []

    @pytest.mark.parametrize("fails", ["", "stage_in", "launch", "stage_out"])
    def test_stages_are_run_without_the_agent_too(self, job: Job, fails: str) -> None:
        job.launch(f'echo launch >>"$T/seen"; exit {3 * (fails == "launch")}')
        for stage in ("stage_in", "stage_out"):
            (job.run_dir / f"{stage}.sh").write_text(f'echo {stage} >>"$T/seen"; exit {4 * (fails == stage)}')
        code, _ = job.run("/nowhere")
        order = ["stage_in", "launch", "stage_out"]
        assert job.seen() == (order if not fails else order[: order.index(fails) + 1])
        assert code == job.record()["exit_code"] == {"": 0, "launch": 3}.get(fails, 4)
        assert (job.run_dir / "done").exists() is (fails in {"", "stage_out"})
        assert (job.run_dir / "uploaded").exists() is (fails == "")

    def test_a_finished_training_is_only_uploaded(self, job: Job) -> None:
        job.launch('echo launch >>"$T/seen"')
        (job.run_dir / "stage_out.sh").write_text('echo upload >>"$T/seen"')
        (job.run_dir / "done").touch()
        assert job.run("/nowhere")[0] == 0
        assert job.run("/nowhere")[0] == 0
        assert job.seen() == ["upload"], "and only once"

    def test_an_end_in_the_very_moment_of_a_signal_keeps_its_exit_code(self, job: Job) -> None:
        """`wait` says 140; by the time bash looks the launch is gone, and its own code was never asked for."""
        job.patch = {'    kill -0 "$1"': '    sleep 0.3; kill -0 "$1"'}
        job.launch(self.NOTE + "trap 'exit 3' USR2; note ready; while :; do sleep 0.02; done")
        job.start("/nowhere")
        job.wait_for("ready")
        job.send(signal.SIGUSR2)
        assert job.end()[0] == 3

    def test_a_launch_that_is_killed_is_recorded_as_such(self, job: Job) -> None:
        job.launch("kill -9 $$")
        assert job.run("/nowhere")[0] == 137
        assert job.record()["exit_code"] == 137

    def test_a_store_that_cannot_be_written_changes_nothing(self, job: Job) -> None:
        (job.run_dir / "attempts").rmdir()
        job.launch("exit 5")
        assert job.run("/nowhere")[0] == 5


def test_where_no_hand_shake_can_be_made_nothing_is_guessed(job: Job) -> None:
    executable(job.folder / "bin" / "mktemp", "#!/bin/sh\nexit 1\n")
    job.env["PATH"] = f"{job.folder / 'bin'}:{job.env['PATH']}"
    assert job.run("/nowhere/python")[0] in {126, 127}
    assert job.seen() == []


def test_an_agent_that_lived_long_but_could_not_write_had_started(job: Job) -> None:
    """A disk that fills up during the training must not make it run a second time."""
    job.patch = {"ST_AGENT_START_S=120": "ST_AGENT_START_S=0"}
    job.agent("time.sleep(1.2); sys.exit(7)")
    assert job.run()[0] == 7
    assert "launch" not in job.seen()


def test_half_a_last_word_does_not_count(job: Job) -> None:
    job.agent('shake("started"); open(os.environ["SLURMTRAIN_HANDSHAKE"], "a").write("exit 1"); os._exit(2)')
    assert job.run()[0] == 2


def test_what_could_break_the_interpreter_is_put_aside_and_handed_on(job: Job) -> None:
    job.env |= {"LD_LIBRARY_PATH": "/a b:/c", "PYTHONPATH": "/x"}
    executable(
        job.folder / "python",
        '#!/bin/bash\nsaved="$SLURMTRAIN_SAVED_LD_LIBRARY_PATH|${SLURMTRAIN_SAVED_LD_AUDIT-unset}"\n'
        'echo "${LD_LIBRARY_PATH-unset}|$saved|$PYTHONPATH" >"$T/env"\necho "exit 0" >>"$SLURMTRAIN_HANDSHAKE"\n',
    )
    assert job.run()[0] == 0
    assert (job.folder / "env").read_text() == "unset|/a b:/c|unset|/x\n"


def test_the_agents_environment_is_the_jobs(job: Job) -> None:
    names = ["name", "code", "child", "record", "start", "started", "RUN_DIR", "AGENT", "folder", "word", "value"]
    job.env |= {name: f"mine {name}" for name in names} | {"SHELLOPTS": "braceexpand:errexit:nounset"}
    job.agent('import json; json.dump(dict(os.environ), open(folder + "/env.json", "w")); shake("exit 0")')
    assert job.run()[0] == 0
    env = json.loads((job.folder / "env.json").read_text())
    assert {name: env[name] for name in names} == {name: f"mine {name}" for name in names}
    added = set(env) - set(job.env) - {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}
    assert added == {"SLURMTRAIN_SUBMISSION", "SLURMTRAIN_HANDSHAKE", "SLURMTRAIN_AGENT_START"}


def test_the_agent_is_a_child_of_the_batch_script_itself(job: Job) -> None:
    """owner.json tells executions apart by the batch script's pid."""
    job.agent('note(str(os.getppid())); shake("exit 0")')
    job.start()
    job.end()
    assert job.seen()[-1] == str(job.process.pid if job.process else 0)


def test_the_number_of_the_submission_is_the_scripts_argument(job: Job) -> None:
    job.agent('note(os.environ["SLURMTRAIN_SUBMISSION"]); shake("exit 0")')
    job.run()
    assert job.seen()[-1] == "0"
