"""The pyslurm client without Slurm: its worker's names against pyslurm's real API, and a worker that goes wrong.

A live check with the real pyslurm runs where one is installed (tests/live/test_pyslurm_client.py).
"""

from __future__ import annotations

import ast
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.core.jobid import JobId
from slurmtrain.core.jobstate import is_running
from slurmtrain.errors import JobNotFoundError, SlurmUnavailableError, SpecError
from slurmtrain.hosts.local import LocalHost
from slurmtrain.slurm import pyslurm_client, pyslurm_worker
from slurmtrain.slurm.pyslurm_client import PySlurmClient
from slurmtrain.testing import MemorySlurm

LISTING = json.loads((Path(__file__).parents[2] / "data" / "pyslurm" / "api-25.11.json").read_text(encoding="utf-8"))
CLASSES = {
    "job": "core.job.job.Job",
    "jobs": "core.job.job.Jobs",
    "node": "core.node.Node",
    "config": "core.slurmctld.config.Config",
    "Job": "core.job.job.Job",
    "Jobs": "core.job.job.Jobs",
    "JobSteps": "core.job.step.JobSteps",
    "Nodes": "core.node.Nodes",
    "Config": "core.slurmctld.config.Config",
}
TREE = ast.parse(Path(pyslurm_worker.__file__).read_text(encoding="utf-8"))


def used_attributes() -> set[tuple[str, str]]:
    """(variable or class, attribute) for everything of pyslurm's that the worker touches."""
    used = set()
    for node in ast.walk(TREE):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in CLASSES:
            used.add((owner.id, node.attr))
        elif isinstance(owner, ast.Attribute) and isinstance(owner.value, ast.Name) and owner.value.id == "pyslurm":
            used.add((owner.attr, node.attr))
    return used


class TestRealApi:
    def test_the_walk_sees_what_the_worker_uses(self) -> None:
        used = used_attributes()
        assert {("job", "requeue_count"), ("Jobs", "load"), ("config", "kill_wait_time"), ("JobSteps", "load")} <= used
        assert len(used) > 40

    @pytest.mark.parametrize(("owner", "attribute"), sorted(used_attributes()))
    def test_every_attribute_exists(self, owner: str, attribute: str) -> None:
        assert attribute in LISTING["api"][CLASSES[owner]]

    def test_every_name_of_the_package_exists(self) -> None:
        names = {
            node.attr
            for node in ast.walk(TREE)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pyslurm"
        }
        assert names >= {"Jobs", "Nodes", "JobSteps", "JobSubmitDescription", "PyslurmError"}
        assert names <= set(LISTING["exports"])

    def test_the_keywords_exist(self) -> None:
        api = LISTING["api"]
        assert {"begin_time", "excluded_nodes"} <= set(api["core.job.submission.JobSubmitDescription"])

    def test_the_reasons_for_the_command_line_still_hold(self) -> None:
        """When pyslurm learns these, the client can drop its way round."""
        assert LISTING["api"]["core.job.job.Job"]["requeue"] == ["hold"]
        assert not {"with_duplicates", "duplicates"} & set(LISTING["api"]["db.job.JobFilter"])


def fake_package(folder: Path, body: str) -> dict[str, str]:
    """An environment whose ``import pyslurm`` runs ``body``."""
    (folder / "pyslurm.py").write_text(textwrap.dedent(body), encoding="utf-8")
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}


def client(environ: dict[str, str], commands: MemorySlurm | None = None) -> PySlurmClient:
    return PySlurmClient(LocalHost(), commands or MemorySlurm(), python=sys.executable, environ=environ, user_id=7)


PACKAGE = """
    class PyslurmError(Exception): pass
    class Job:
        array_id = heterogeneous_id = None
        def __init__(self, number): self.number = number
        @staticmethod
        def load(number):
            if number == 404: raise PyslurmError("Invalid job id specified")
            job = Job(number)
            job.array_id = 5 if number == 5 else None
            return job
        def requeue(self): raise PyslurmError("Job is pending execution")
        def cancel(self): raise PyslurmError("Job/step already completing or completed")
        def release(self): raise PyslurmError("Access/permission denied")
    class Jobs:
        @staticmethod
        def load():
            print("libslurm prints on stdout")
            class Row:
                id, array_id, array_task_id, heterogeneous_id, heterogeneous_offset = 9, None, None, 0, 0
                user_id, state, requeue_count, is_requeueable = 7, "RUNNING", 2, True
                allocated_nodes, num_nodes, exit_code, exit_code_signal = "n[1-2]", 2, 0, 0
                submit_time = eligible_time = start_time = 1795973157
                end_time, preempt_time, time_limit, required_nodes, partition = 1795976757, None, 60, None, "batch"
                priority, state_reason, array_tasks_waiting, excluded_nodes = 1, "None", None, "n7"
            class Waiting(Row):
                id, array_id, state, array_tasks_waiting, allocated_nodes = 20, 20, "PENDING", "3-4,9", None
            class TaskZero(Row):
                id, array_id = 21, 20
            class Other(Row):
                id, user_id = 30, 8
            return {9: Row, 20: Waiting, 21: TaskZero, 30: Other}
"""


class TestWorker:
    def test_jobs(self, tmp_path: Path) -> None:
        slurm = client(fake_package(tmp_path, PACKAGE))
        jobs = slurm.observe().jobs
        assert set(jobs) == {JobId(9), JobId(20, 0), JobId(20, 3), JobId(20, 4), JobId(20, 9)}
        job = jobs[JobId(9)]
        assert is_running(job.state)
        assert (job.nodes, job.restart_count, job.reason, job.exit_code) == ("n[1-2]", 2, "", None)
        assert job.time_limit is not None
        assert job.time_limit.total_seconds() == 3600
        assert slurm.excluded_nodes(JobId(9)) == "n7"
        assert set(slurm.observe([JobId(30)]).jobs) == {JobId(30)}

    def test_slurms_words_are_understood_as_the_command_lines(self, tmp_path: Path) -> None:
        slurm = client(fake_package(tmp_path, PACKAGE))
        slurm.requeue(JobId(9), only_running=False)
        slurm.cancel(JobId(9))
        slurm.cancel(JobId(404))
        with pytest.raises(JobNotFoundError, match="cannot requeue job 404"):
            slurm.requeue(JobId(404), only_running=False)

    def test_what_pyslurm_cannot_say_goes_to_the_command_line(self, tmp_path: Path) -> None:
        commands = MemorySlurm()
        slurm = client(fake_package(tmp_path, PACKAGE), commands)
        with pytest.raises(JobNotFoundError):
            slurm.requeue(JobId(9), only_running=True)
        slurm.cancel(JobId(5))  # an array
        slurm.cancel(JobId(9, 1))
        assert [call.name for call in commands.calls] == ["requeue", "cancel", "cancel"]

    @pytest.mark.parametrize(
        ("body", "error", "words"),
        [
            ("import no_such_thing_xyz", SpecError, "does not fit"),
            ("raise ImportError('libslurm.so.44: cannot open shared object file')", SpecError, "libslurm.so.44"),
            ("import os\nos.write(2, b'fatal: bad slurm.conf')\nos._exit(1)", SlurmUnavailableError, "bad slurm.conf"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", SlurmUnavailableError, "process ended"),
            ("class PyslurmError(Exception): pass", SlurmUnavailableError, "do not know"),
        ],
    )  # fmt: skip
    def test_a_worker_that_goes_wrong(self, tmp_path: Path, body: str, error: type[Exception], words: str) -> None:
        with pytest.raises(error, match=words) as caught:
            client(fake_package(tmp_path, body)).observe()
        assert "\n" not in str(caught.value)

    def test_no_pyslurm_at_all(self) -> None:
        with pytest.raises(SpecError, match="not installed"):
            client({"PATH": os.environ["PATH"]}).observe()

    def test_a_worker_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pyslurm_client, "CALL_TIMEOUT_S", 1.0)
        with pytest.raises(SlurmUnavailableError, match="no answer within"):
            client(fake_package(tmp_path, "import time; time.sleep(600)")).observe()

    def test_pyslurm_does_not_meet_our_modules_of_common_names(self, tmp_path: Path) -> None:
        body = PACKAGE + "\n    import importlib.util\n    assert importlib.util.find_spec('parse') is None\n"
        assert client(fake_package(tmp_path, body)).observe().jobs


def test_the_two_halves_use_the_same_mark() -> None:
    private: Any = pyslurm_client
    assert private._MARK == pyslurm_worker.MARK
