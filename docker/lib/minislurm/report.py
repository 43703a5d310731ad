"""Running the parts of `mini-slurm test`, timing them, and the summary at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minislurm.errors import MiniSlurmError

# pytest's closing line, with or without its frame of equal signs and colours.
CLOSING = re.compile(r"(?:^|[ =\x1b\[0-9;m])\d+ (?:passed|failed|error|errors|skipped|deselected)\b.* in \d")
MAX_SECOND = 15  # more failures than that are no noise
SECOND = re.compile(r"^ATTENTION: (\d+) tests failed at first and passed alone", re.MULTILINE)
COUNT = re.compile(r"(\d+) (passed|failed|error|errors|skipped|xfailed)\b")


@dataclass
class Report:
    """What was run so far: the parts with their times, and pytest's counts over all of them."""

    rows: list[tuple[str, bool, float]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: {"passed": 0, "failed": 0, "skipped": 0})
    second: int = 0  # tests that failed beside others and passed alone

    def part(self, name: str, work: Callable[[], bool]) -> bool:
        """Run one part; a known problem is its failure, not the end of the run."""
        print(f"\n===== {name} =====", flush=True)
        started = time.monotonic()
        try:
            good = work()
        except MiniSlurmError as exc:
            print(f"mini-slurm: {name}: {exc}", file=sys.stderr, flush=True)
            good = False
        self.rows.append((name, good, time.monotonic() - started))
        print(f"----- {name}: {'ok' if good else 'FAILED'} after {self.rows[-1][2]:.0f} s", flush=True)
        return good

    def pytest(self, argv: list[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float, cache: Path) -> bool:
        """Run pytest, show its output and add its counts; no test run counts as a failure.

        Live tests have deadlines and machines are noisy: a few that failed are run once more, one after the other, and
        count as what they do then. That is said loudly, here and in the summary.
        """
        cached = [*argv, "-o", f"cache_dir={cache}"]
        shutil.rmtree(cache, ignore_errors=True)
        code, closing = stream(cached, cwd=cwd, env=env, timeout_s=timeout_s)
        failed = _failures(closing)
        if code != 1 or not 0 < failed <= MAX_SECOND:
            return self.count(code, closing)
        print(f"\n!!!!! {failed} tests failed; each gets a second chance, alone !!!!!\n", flush=True)
        alone = [word for word in cached if not word.startswith(("-n", "--maxschedchunk"))]
        again = [*alone, "--last-failed", "--last-failed-no-failures=none"]
        second, words = stream(again, cwd=cwd, env=env, timeout_s=timeout_s)
        self.second += failed if second == 0 else 0
        passed = _counts(closing).get("passed", 0)
        self.counts["passed"] += passed
        self.counts["skipped"] += _counts(closing).get("skipped", 0)
        return self.count(second, words) and passed > 0

    def count(self, code: int, closing: str) -> bool:
        """Add the counts of pytest's closing line; whether all is well and at least one test passed."""
        found = _counts(closing)
        self.counts["passed"] += found.get("passed", 0)
        self.counts["skipped"] += found.get("skipped", 0) + found.get("xfailed", 0)
        self.counts["failed"] += _failures(closing)
        return code == 0 and found.get("passed", 0) > 0

    def count_run(self, code: int, lines: Sequence[str]) -> bool:
        """Add the counts of what ran beside: its closing line, and the tests that got a second chance in it."""
        self.second += sum(int(number) for number in SECOND.findall("\n".join(lines[-20:])))
        return self.count(code, lines[-1] if lines else "")

    def close(self) -> int:
        """Print the summary and the closing line; the exit status."""
        bad = [name for name, good, _ in self.rows if not good]
        print("\n===== summary =====")
        for name, good, seconds in self.rows:
            print(f"{'ok    ' if good else 'FAILED'} {seconds:7.0f} s  {name}")
        print(f"total  {sum(row[2] for row in self.rows):7.0f} s")
        if self.second:
            print(f"ATTENTION: {self.second} tests failed at first and passed alone: see the output above")
        counts = self.counts
        failed = counts["failed"] + (len(bad) if bad and not counts["failed"] else 0)
        print(f"{counts['passed']} passed, {failed} failed, {counts['skipped']} skipped", flush=True)
        return 1 if bad or not self.rows else 0


def _counts(closing: str) -> dict[str, int]:
    """pytest's closing line as numbers."""
    return {word: int(number) for number, word in COUNT.findall(closing)}


def _failures(closing: str) -> int:
    found = _counts(closing)
    return found.get("failed", 0) + found.get("error", 0) + found.get("errors", 0)


def stream(argv: list[str], *, cwd: Path, env: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
    """Run a command in a session of its own and pass its output on; (exit status, pytest's closing line).

    After `timeout_s`, and at an exception, the whole session is killed.
    """
    child = subprocess.Popen(
        argv,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert child.stdout is not None
    alarm = threading.Timer(timeout_s, _kill_group, [child, f"time is over after {timeout_s:.0f} s"])
    alarm.daemon = True
    alarm.start()
    closing = ""
    try:
        for line in child.stdout:
            print(line, end="", flush=True)
            if CLOSING.search(line):
                closing = line
        return child.wait(), closing
    finally:
        alarm.cancel()
        _kill_group(child)


def _kill_group(child: subprocess.Popen[str], why: str = "") -> None:
    """Kill what is left of the command's session."""
    if why:
        print(f"mini-slurm: {why}: {' '.join(child.args) if isinstance(child.args, list) else ''}", file=sys.stderr)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
