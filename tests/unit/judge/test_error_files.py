"""Error files that ranks leave in their launch's folder take part in the diagnosis."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from slurmtrain.core.facts import Facts
from slurmtrain.ops import judge
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.store.rundir import RunDir

RULES = load_rules().to_json()  # half a second of work

TRACE = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path)
    run.rules.write_text(RULES)
    return run


def leave(folder: Path, name: str, message: str, at: int) -> None:
    folder.mkdir(exist_ok=True)
    body = {"message": {"message": message, "extraInfo": {"py_callstack": TRACE + message, "timestamp": str(at)}}}
    (folder / name).write_text(json.dumps(body))


def test_the_earliest_rank_wins_and_the_log_is_shown(run: RunDir) -> None:
    """Without prefixes the log alone would blame the first that printed."""
    folder = run.path / "launch"
    leave(folder, "error-rank-0.json", "ValueError: late", 1_700_000_009)
    leave(folder, "error-rank-5.json", "KeyError: 'first'", 1_700_000_001)
    log = run.path / "log"
    log.write_text(TRACE + "ValueError: late\n" + TRACE + "KeyError: 'first'\n")
    found = judge.diagnose_log(run, Facts(state="FAILED", exit_code=1), judge.LogRange(log, folder=folder))
    assert (found.cause, found.rank) == ("python_exception", 5)
    assert "KeyError: 'first'" in found.sentence
    assert "{" not in found.evidence[0].text


def test_an_error_file_alone_is_enough(run: RunDir) -> None:
    folder = run.path / "launch"
    leave(folder, "error-rank-2.json", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 1)
    log = run.path / "log"
    log.write_text("srun: error: n1: task 2: Exited with exit code 1\n")
    found = judge.diagnose_log(run, Facts(state="FAILED", exit_code=1), judge.LogRange(log, folder=folder))
    assert (found.cause, found.rank) == ("cuda_oom", 2)


def test_what_is_no_error_file_is_passed_over(run: RunDir) -> None:
    folder = run.path / "launch"
    folder.mkdir()
    os.mkfifo(folder / "error-rank-0.json")
    (folder / "error-rank-1.json").symlink_to(folder / "nowhere")
    (folder / "error-rank-2.json").mkdir()
    (folder / "error-rank-3.json").write_bytes(b"GPU 0 is lost\n" * 100_000)
    (folder / "error-rank-4.json").write_bytes(b"")
    log = run.path / "log"
    log.write_text("hello\n")
    found = judge.diagnose_log(run, Facts(state="FAILED", exit_code=1), judge.LogRange(log, folder=folder))
    assert found.cause == "unknown"
