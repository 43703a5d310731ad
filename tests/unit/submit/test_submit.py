"""Submission: a run directory appears whole, or nothing is left; and what is said for each answer of Slurm's."""

# ruff: noqa: E501 - Slurm's texts and tables of cases
from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from submit_support import Desk

from slurmtrain.core.decision import RunState
from slurmtrain.core.run import fold
from slurmtrain.errors import (
    HostUnreachableError,
    SlurmBusyError,
    SlurmRefusedError,
    SlurmUnavailableError,
    SpecError,
    StoreError,
)
from slurmtrain.ops import prepare as prepare_module
from slurmtrain.ops.prepare import build_run_id, choose_agent_python
from slurmtrain.store.find import find_run
from slurmtrain.store.journal import read_journal
from slurmtrain.store.rundir import RUN_ID, RunDir

TIMED_OUT = "1 sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
CONNECT = "1 sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"
NO_PARTITION = (
    "1 sbatch: error: invalid partition specified: gpux; Batch job submission failed: Invalid partition name specified"
)
LIMIT = "1 sbatch: error: AssocMaxSubmitJobLimit"


def calls(desk: Desk) -> list[dict]:
    return [json.loads(line) for line in (desk.folder / "calls").read_text().splitlines()]


def test_an_accepted_run_is_whole(desk: Desk) -> None:
    accepted = desk.submit(desk.prepare())
    run = accepted.run
    assert str(accepted.job_id) == "4711"
    assert {p.name for p in run.path.iterdir()} >= {
        "spec.yaml", "plan.json", "rules.json", "job.sbatch", "launch.sh", "agent.pyz", "logs", "attempts", "journal", "submissions",
    }  # fmt: skip
    assert run.read_plan().spec.command == ("bash", "x")
    assert run.read_plan().run_id == run.run_id
    assert run.read_submissions() == {0: "4711"}
    state = fold(read_journal(run.journal))
    assert (state.state, state.job_id) == (RunState.INQUEUE, "4711")
    assert state.created is not None
    assert state.created.uid == os.getuid()
    assert find_run(desk.store, "4711").run_id == run.run_id
    assert [p.name for p in run.path.parent.iterdir()] == [run.run_id]


def test_slurm_gets_the_script_that_is_kept_and_the_number_of_the_submission(desk: Desk) -> None:
    accepted = desk.submit(desk.prepare())
    [call] = calls(desk)
    assert call["argv"] == ["--parsable", str(accepted.run.batch_script), "0"]
    assert call["script"] == accepted.run.batch_script.read_text()


def test_the_rules_and_the_agent_are_frozen_into_the_run(desk: Desk) -> None:
    run = desk.submit(desk.prepare()).run
    assert json.loads(run.rules.read_text())["rules"]
    result = subprocess.run([sys.executable, "-I", run.agent], capture_output=True, text=True, cwd="/", timeout=60)
    assert "usage: agent.pyz" in result.stdout


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002, 0o000])
def test_nobody_else_may_write_whatever_the_umask_and_secrets_are_private(desk: Desk, umask: int) -> None:
    """A launch script that a colleague can change would run in the owner's name."""
    before = os.umask(umask)
    try:
        run = desk.submit(desk.prepare()).run
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [run.path, run.path.parent, *run.path.rglob("*")]}
    assert not {name: oct(mode) for name, mode in modes.items() if mode & 0o022}
    private = [run.spec, run.plan, run.launch_script, run.batch_script]
    assert all(modes[path.name] & 0o077 == 0 for path in private), "values of environment.variables stand in them"
    assert modes["launch.sh"] & stat.S_IXUSR


class TestRefused:
    def test_nothing_is_left_and_the_partitions_that_exist_are_named(self, desk: Desk) -> None:
        desk.answers(NO_PARTITION)
        with pytest.raises(SlurmRefusedError) as caught:
            desk.submit(desk.prepare())
        said = str(caught.value)
        assert said.startswith("nothing was submitted: ")
        assert "Invalid partition name" in said
        assert "partitions here: batch, urgent" in said
        assert str(desk.store) not in said
        assert desk.leftovers() == ["runs"]

    def test_other_refusals_keep_slurms_words(self, desk: Desk) -> None:
        desk.answers("1 sbatch: error: Batch job submission failed: Requested node configuration is not available")
        with pytest.raises(SlurmRefusedError, match="Requested node configuration is not available"):
            desk.submit(desk.prepare())
        assert desk.leftovers() == ["runs"]


class TestBusy:
    def test_a_limit_is_waited_for_and_the_submission_keeps_its_number(self, desk: Desk) -> None:
        desk.answers(LIMIT, LIMIT, "0 12")
        accepted = desk.submit(desk.prepare())
        assert str(accepted.job_id) == "12"
        assert [call["argv"][-1] for call in calls(desk)] == ["0", "0", "0"]
        assert desk.slept == [2.0, 5.0]
        assert all("trying again in" in line for line in desk.told)
        assert len(desk.told) == 2

    def test_not_for_ever(self, desk: Desk) -> None:
        desk.answers(LIMIT)
        with pytest.raises(SlurmBusyError, match="nothing was submitted"):
            desk.submit(desk.prepare())
        assert len(calls(desk)) == 5
        assert desk.leftovers() == ["runs"]


class TestNoAnswer:
    def test_a_lost_reply_keeps_the_run_and_says_so(self, desk: Desk) -> None:
        desk.answers(TIMED_OUT)
        prepared = desk.prepare()
        with pytest.raises(SlurmUnavailableError) as caught:
            desk.submit(prepared)
        assert caught.value.exit_code == 4
        assert "did not say whether it took the job" in str(caught.value)
        assert prepared.run.run_id in str(caught.value)
        run = find_run(desk.store, prepared.run.run_id)
        assert run.read_plan().run_id == prepared.run.run_id
        assert fold(read_journal(run.journal)).uncertain
        assert run.submission(0).with_suffix(".pending").exists()
        assert run.read_submissions() == {}

    def test_a_controller_that_cannot_be_reached_got_nothing(self, desk: Desk) -> None:
        desk.answers(CONNECT)
        with pytest.raises(SlurmUnavailableError, match=r"nothing was submitted: .*connect failure"):
            desk.submit(desk.prepare())
        assert desk.leftovers() == ["runs"]

    def test_without_sbatch_nothing_is_submitted(self, desk: Desk) -> None:
        (desk.folder / "bin" / "sbatch").unlink()
        with pytest.raises(HostUnreachableError, match="nothing was submitted"):
            desk.submit(desk.prepare())
        assert desk.leftovers() == ["runs"]


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 32 KiB: writing the agent fails in the middle, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


class TestStore:
    def test_a_write_that_fails_in_the_middle_leaves_nothing(self, desk: Desk, small_files: None) -> None:
        with pytest.raises(StoreError, match="nothing was submitted"):
            desk.submit(desk.prepare())
        assert desk.leftovers() == ["runs"]
        assert not (desk.folder / "calls").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
    def test_a_full_disk_leaves_nothing(self, desk: Desk) -> None:
        desk.store.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", desk.store], capture_output=True)
        if mounted.returncode != 0:
            pytest.skip("mount is not allowed here")
        try:
            with pytest.raises(StoreError, match="No space left on device; nothing was submitted"):
                desk.submit(desk.prepare())
            assert desk.leftovers() == ["runs"]
        finally:
            subprocess.run(["umount", desk.store], check=True)

    def test_a_store_that_is_a_file(self, desk: Desk) -> None:
        desk.store.write_text("mine")
        with pytest.raises(StoreError, match=r"cannot write the store .*; see --store"):
            desk.submit(desk.prepare())
        assert desk.store.read_text() == "mine"

    @pytest.mark.parametrize("name", ["back\\slash", "new\nline", "bell\x07"])
    def test_a_store_in_which_slurm_could_not_write_a_log(self, desk: Desk, name: str) -> None:
        desk.store = desk.folder / name
        with pytest.raises(StoreError, match="choose another --store"):
            desk.prepare()

    def test_a_path_too_long_for_slurm(self, desk: Desk) -> None:
        desk.store = desk.folder.joinpath(*["x" * 200] * 5)
        with pytest.raises(StoreError, match="too long for Slurm"):
            desk.prepare()

    def test_a_reader_never_sees_a_part_of_a_run(self, desk: Desk) -> None:
        """Another process lists the store all the while: every run that it sees has its plan."""
        seen, stop = [], threading.Event()

        def look() -> None:
            while not stop.is_set():
                for path in (desk.store / "runs").glob("*"):
                    if RUN_ID.fullmatch(path.name):
                        seen.append(RunDir(path).plan.exists() and RunDir(path).agent.exists())

        thread = threading.Thread(target=look)
        thread.start()
        for _ in range(5):
            desk.submit(desk.prepare())
        stop.set()
        thread.join()
        assert seen
        assert all(seen)


class TestInterrupted:
    def test_control_c_during_the_submission_leaves_nothing_that_could_train(self, desk: Desk) -> None:
        (desk.folder / "bin" / "sbatch").write_text(
            "#!/bin/bash\nPATH=/usr/bin:/bin\ntouch $T/called; sleep 30; echo 1\n"
        )
        timer = threading.Thread(target=lambda: (wait_for(desk.folder / "called"), os.kill(os.getpid(), signal.SIGINT)))
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # as in a terminal, whatever ran in this process before
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            desk.submit(desk.prepare())
        timer.join()
        assert desk.leftovers() == ["runs"]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_where_the_gate_was_faster_its_claim_stands(desk: Desk) -> None:
    """The job may start before sbatch has answered: the gate has claimed the submission then."""
    prepared = desk.prepare()
    claim = prepared.run.submission(0)
    (desk.folder / "bin" / "sbatch").write_text(
        f'#!/bin/bash\nPATH=/usr/bin:/bin\nmkdir -p {claim.parent}\necho \'{{"job_id": "4711", "claimed_by": "gate"}}\' >{claim}\necho 4711\n'
    )
    desk.submit(prepared)
    assert json.loads(claim.read_text())["claimed_by"] == "gate"


class TestRunIds:
    @pytest.mark.parametrize(
        ("name", "slug"),
        [
            ("My Run", "my-run"), ("$(rm -rf x)", "rm-rf-x"), ("---", "run"), ("日本", "run"), ("Größe 3", "groe-3"), ("x" * 200, "x" * 40),
            ("../../etc", "etc"), (".hidden", "hidden"), ("a_b.c", "a-b-c"),
        ],
    )  # fmt: skip
    def test_are_safe_names_whatever_the_run_is_called(self, name: str, slug: str) -> None:
        from datetime import datetime, timezone

        run_id = build_run_id(name, datetime(2026, 11, 29, 17, 5, tzinfo=timezone.utc))
        assert re.fullmatch(re.escape(slug) + r"-20261129-1705-[0-9a-f]{8}", run_id)
        assert RUN_ID.fullmatch(run_id)

    def test_never_come_twice(self) -> None:
        from datetime import datetime, timezone

        now = datetime.now(timezone.utc)
        assert len({build_run_id("x", now) for _ in range(200)}) == 200


class TestSetup:
    def test_a_syntax_error_in_a_setup_line_is_found_before_the_queue(self, desk: Desk) -> None:
        with pytest.raises(SpecError, match=r"environment\.setup: bash cannot read it"):
            desk.prepare('environment.setup=["if true; then"]')


class TestAgentPython:
    def test_the_one_of_the_settings_must_work(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="agent_python 'python3': is no absolute path"):
            choose_agent_python("python3")
        with pytest.raises(SpecError, match="does not run: No such file"):
            choose_agent_python(str(tmp_path / "python"))
        old = tmp_path / "old"
        old.write_text("#!/bin/sh\necho 3 9\n")
        old.chmod(0o755)
        with pytest.raises(SpecError, match=r"is Python 3\.9, older than 3\.10"):
            choose_agent_python(str(old))

    def test_one_that_needs_ld_library_path_is_passed_over_with_a_note(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        picky = tmp_path / "python"
        picky.write_text(f'#!/bin/sh\n[ -n "$LD_LIBRARY_PATH" ] || exit 127\nexec {sys.executable} "$@"\n')
        picky.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(picky))
        chosen, notes = choose_agent_python(None)
        assert chosen != str(picky)
        assert "does not start without LD_LIBRARY_PATH" in notes[0]

    @pytest.mark.parametrize("name", ["", "LD_LIBRARY_PATH", "PYTHONHOME"])
    def test_the_one_that_runs_here_is_tried_where_the_environment_may_help_it(
        self, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        for known in list(os.environ):
            if known.startswith(("LD_", "PYTHON")):
                monkeypatch.delenv(known)
        tried: list[str] = []
        monkeypatch.setattr(prepare_module, "_try_python", tried.append)
        if name:
            monkeypatch.setenv(name, "/opt/x")
        assert choose_agent_python(None) == (sys.executable, ())
        assert tried == ([sys.executable] if name else [])
        assert choose_agent_python(sys.executable)[0] == sys.executable
        assert tried[-1:] == [sys.executable], "one that settings name is always tried"
