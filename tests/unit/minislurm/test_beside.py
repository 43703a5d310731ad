"""A part of `mini-slurm test` that runs beside the others."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from minislurm.beside import Beside
from minislurm.report import Report

PATIENT = """
import sys, time
try:
    open(sys.argv[1], "w").close()
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[2], "w").close()
"""


def beside(tmp_path: Path, program: str, *words: str, timeout_s: float = 60) -> Beside:
    argv = [sys.executable, "-c", program, *words]
    return Beside(argv, tmp_path / "part.log", cwd=tmp_path, env=dict(os.environ), timeout_s=timeout_s)


def test_its_output_is_shown_when_it_is_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with beside(tmp_path, "print('3 passed, 0 failed, 1 skipped'); raise SystemExit(7)") as part:
        assert part.finish() == (7, ["3 passed, 0 failed, 1 skipped"])
    assert capsys.readouterr().out == "3 passed, 0 failed, 1 skipped\n"


def test_the_counts_of_another_run_are_added_with_its_second_chances() -> None:
    report = Report()
    lines = [
        "ATTENTION: 2 tests failed at first and passed alone: see the output above",
        "9 passed, 0 failed, 1 skipped",
    ]
    assert report.count_run(0, lines)
    assert (report.second, report.counts) == (2, {"passed": 9, "failed": 0, "skipped": 1})
    assert not report.count_run(1, ["9 passed, 1 failed, 0 skipped"])
    assert not report.count_run(1, [])


def test_what_still_runs_at_the_end_may_clean_up(tmp_path: Path) -> None:
    started, cleaned = tmp_path / "started", tmp_path / "cleaned"
    with beside(tmp_path, PATIENT, str(started), str(cleaned)):
        deadline = time.monotonic() + 30
        while not started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert cleaned.exists()


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    with beside(tmp_path, "import time; print('begun', flush=True); time.sleep(60)", timeout_s=1) as part:
        code, lines = part.finish()
    assert code != 0
    assert lines[:1] in ([], ["begun"])
