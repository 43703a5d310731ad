"""The summary of `mini-slurm test`: a failure anywhere is a failure, and the closing line counts."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import pytest
from minislurm.errors import MiniSlurmError
from minislurm.report import Report, stream


def run(report: Report, *lines: str, code: int = 0, again: str = "", again_code: int = 1) -> bool:
    """A program that ends like pytest; ``again`` is its closing line when it gets the failed tests alone."""
    script = (
        "import sys\n"
        f"if '--last-failed' in sys.argv: print({again!r}); sys.exit({again_code})\n"
        + "".join(f"print({line!r})\n" for line in lines)
        + f"sys.exit({code})\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        argv = [sys.executable, "-c", script]
        return report.pytest(argv, cwd=Path("/"), env=dict(os.environ), timeout_s=30, cache=Path(cache) / "cache")


def test_tests_that_pass_alone_count_as_passed_and_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.part(
        "live", lambda: run(report, "2 failed, 10 passed in 9.0s", code=1, again="2 passed in 1s", again_code=0)
    )
    assert report.close() == 0
    out = capsys.readouterr().out
    assert "ATTENTION: 2 tests failed at first and passed alone" in out
    assert out.splitlines()[-1] == "12 passed, 0 failed, 0 skipped"


def test_many_failures_get_no_second_chance() -> None:
    report = Report()
    assert not run(report, "16 failed, 10 passed in 9.0s", code=1, again="16 passed in 1s", again_code=0)
    assert report.counts["failed"] == 16


@pytest.mark.parametrize(
    ("line", "code", "good", "counts"),
    [
        ("12 passed in 3.21s", 0, True, (12, 0, 0)),
        ("==== 2 failed, 10 passed, 1 skipped in 60.00s (0:01:00) ====", 1, False, (10, 2, 1)),
        (
            "\x1b[32m=== \x1b[32m\x1b[1m7 passed\x1b[0m, \x1b[33m2 skipped\x1b[0m in 1.00s ===\x1b[0m",
            0,
            True,
            (7, 0, 2),
        ),
        ("3 passed, 1 error in 2s", 1, False, (3, 1, 0)),
        ("no tests ran in 0.01s", 5, False, (0, 0, 0)),
        ("4 deselected in 0.01s", 0, False, (0, 0, 0)),
        ("3 skipped in 0.10s", 0, False, (0, 0, 3)),
    ],
)
def test_counts_come_from_pytests_closing_line(line: str, code: int, good: bool, counts: tuple[int, int, int]) -> None:
    report = Report()
    failed = counts[1]
    assert run(report, "tests/x.py::test 9 passed", line, "bye", code=code, again=f"{failed} failed in 1s") is good
    assert (report.counts["passed"], report.counts["failed"], report.counts["skipped"]) == counts


def test_a_failed_part_fails_the_whole_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.part("one", lambda: run(report, "5 passed in 1.0s"))
    report.part("two", lambda: False)

    def trouble() -> bool:
        raise MiniSlurmError("no engine answers")

    report.part("three", trouble)
    report.part("four", lambda: True)
    assert report.close() == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "5 passed, 2 failed, 0 skipped"
    assert "no engine answers" in err
    assert "four: ok" in out


def test_nothing_run_is_a_failure() -> None:
    assert Report().close() == 1


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"sleep 60 & echo $! >{mark}; wait"
    started = time.monotonic()
    code, _ = stream(["/bin/sh", "-c", script], cwd=tmp_path, env=dict(os.environ), timeout_s=0.5)
    assert time.monotonic() - started < 10
    assert code != 0
    child = Path(f"/proc/{mark.read_text(encoding='ascii').strip()}/stat")
    time.sleep(0.2)
    assert not child.exists() or child.read_text(encoding="utf-8").split()[2] == "Z"
