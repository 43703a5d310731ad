"""What runs beside the native live tests: a real pytest in a test run's own folder."""

from __future__ import annotations

import sys
from pathlib import Path

from minislurm import testrun
from minislurm.report import Report


def make(work: Path) -> testrun.TestRun:
    return testrun.TestRun(Report(), work, (), (), frozenset())


def test_what_fails_beside_others_gets_a_second_chance(tmp_path: Path) -> None:
    """And only that: what passed is not run again."""
    file = tmp_path / "test_it.py"
    file.write_text(
        "from pathlib import Path\n"
        "RUNS = Path(__file__).with_name('runs')\n"
        "def note(name):\n"
        "    seen = RUNS.read_text() if RUNS.exists() else ''\n"
        "    RUNS.write_text(seen + name + ' ')\n"
        "    return name in seen\n"
        "def test_good(): note('good')\n"
        "def test_flaky(): assert note('flaky')\n"
    )
    run = make(tmp_path)
    for _ in range(2):  # an earlier run in the same folder changes nothing
        (tmp_path / "runs").unlink(missing_ok=True)
        argv = run.pytest_command(Path(sys.executable).parent, str(file), "-q", cache="beside")
        with run.begin("beside", argv, run.env) as part:
            code, lines = part.finish()
            assert (code, lines[-1].split(" in ")[0]) == (1, "1 failed, 1 passed")
            assert run.judge(argv, code, lines[-1], run.env)
        assert (tmp_path / "runs").read_text() == "good flaky flaky "
    assert (run.report.second, run.report.counts) == (2, {"passed": 4, "failed": 0, "skipped": 0})
