"""A pattern that backtracks for ever costs a bounded time, in the agent as in the watcher."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from slurmtrain.core.facts import Facts
from slurmtrain.core.rules import Rule, RuleSet
from slurmtrain.logs.deadline import DeadlineError, deadline
from slurmtrain.ops import judge
from slurmtrain.store.rundir import RunDir

BAD = r"^(a+)+$"
FOR_EVER = "a" * 60 + "!"


def test_a_search_that_never_ends_is_ended() -> None:
    before = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(DeadlineError, match=r"0\.3 s"), deadline(0.3):
        re.search(BAD, FOR_EVER)
    assert time.monotonic() - began < 5
    assert signal.getsignal(signal.SIGALRM) is before


def test_what_is_done_in_time_is_left_alone() -> None:
    with deadline(0.2):
        pass
    time.sleep(0.3)


def test_another_thread_has_no_alarm() -> None:
    done: list[bool] = []

    def work() -> None:
        with deadline(0.1):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_bad_rule_never_keeps_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "SCAN_TIME_S", 0.3)
    run = RunDir(tmp_path)
    rule = Rule(id="bad", cause="native_crash", patterns=(BAD,))
    run.rules.write_text(RuleSet.of([rule]).to_json())
    log = tmp_path / "log"
    log.write_text(f"{FOR_EVER}\n")
    began = time.monotonic()
    diagnosis = judge.diagnose_log(run, Facts(state="OUT_OF_MEMORY"), judge.LogRange(log))
    assert time.monotonic() - began < 10
    assert diagnosis.cause == "host_oom", "what Slurm says is still there"
    assert "could not be read" in diagnosis.notes[-1]


def test_a_log_that_takes_too_long_is_judged_by_its_end_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bad line stands outside the last bytes: the end is read, less sure, without numbers of lines."""
    monkeypatch.setattr(judge, "SCAN_TIME_S", 0.3)
    monkeypatch.setattr(judge, "TAIL_BYTES", 4_000)
    run = RunDir(tmp_path)
    rules = [
        Rule(id="bad", cause="native_crash", patterns=(BAD,), weight=70),
        Rule(id="key", cause="python_exception", patterns=("KeyError",), literals=(("keyerror",),), weight=70),
    ]
    run.rules.write_text(RuleSet.of(rules).to_json())
    log = tmp_path / "log"
    log.write_text(f"{FOR_EVER}\n" + "step 1 loss 2\n" * 2_000 + "KeyError: 'x'\n")
    diagnosis = judge.diagnose_log(run, Facts(state="FAILED", exit_code=1), judge.LogRange(log))
    assert (diagnosis.cause, diagnosis.line, diagnosis.evidence[0].line) == ("python_exception", None, 0)
    assert "only the last" in diagnosis.notes[-1]
    quick = log.with_name("quick")
    quick.write_text("KeyError: 'x'\n")
    whole = judge.diagnose_log(run, Facts(state="FAILED", exit_code=1), judge.LogRange(quick))
    assert whole.line == 1
    assert diagnosis.confidence < whole.confidence
