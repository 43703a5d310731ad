"""A run's output over attempts and jobs: which bytes are whose, and following them while they are written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from made_runs import MadeRun, Slurm, make_run

from slurmtrain.cli.logs import command
from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.errors import NotFoundError, UsageError
from slurmtrain.logs.search import SlowPatternError
from slurmtrain.ops.log_follow import Following
from slurmtrain.ops.logs import find_segments, log_files, rank_of

PARTS = ["=== 0.0\n", "0: a\n1: b\n", "=== 0.1\n", "0: c\n", "leaving\n", "=== 1.0\n", "1: d\n", "done\n"]


def _write(path: Path, text: str) -> int:
    with path.open("a") as stream:
        stream.write(text)
    return path.stat().st_size


def _two_attempts(store: Path) -> MadeRun:
    """One job: attempt 0 with two launches, a requeue, attempt 1 with one."""
    slurm, run = Slurm(), make_run(store)
    job_id = run.submitted(slurm)
    log = run.dir.log_file(str(job_id))
    name = f"logs/{log.name}"
    for attempt, launches in ((0, (0, 1)), (1, (0,))):
        run.attempt(job_id, attempt)
        for number in launches:
            start = {(0, 0): 0, (0, 1): 2, (1, 0): 5}[attempt, number]
            offset = _write(log, PARTS[start])
            run.launch(attempt, number, log=name, offset=offset)
            run.launch_ended(attempt, number, log_end=_write(log, PARTS[start + 1]))
        _write(log, PARTS[4] if attempt == 0 else PARTS[7])
    return run


def _read(run: MadeRun, attempt: int | None = None, launch: int | None = None) -> str:
    text = ""
    for segment in find_segments(run.view, attempt, launch):
        text += segment.path.read_bytes()[segment.start : segment.end].decode()
    return text


def test_each_launch_has_its_own_bytes(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    assert _read(run) == "".join(PARTS)
    assert _read(run, 0, 0) == PARTS[1]
    assert _read(run, 0, 1) == PARTS[3]
    assert _read(run, 1, 0) == _read(run, None, 0) == PARTS[6]
    assert _read(run, 0) == "".join(PARTS[1:6]), "with what was said between its launches and at its end"
    assert _read(run, 1) == "".join(PARTS[6:])
    for attempt, launch in ((2, None), (0, 7)):
        with pytest.raises(NotFoundError):
            find_segments(run.view, attempt, launch)


def test_a_journal_that_names_files_elsewhere_shows_none_of_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for name in ("/etc/passwd", "../../../etc/passwd", "logs/../../../x"):
        run.launch(0, log=name)
    run.write(ev.Submitted(at=1.0, who="user", submission=0, job_id="../../../../etc/passwd"))
    assert all(path.is_relative_to(run.dir.path) for path in log_files(run.view))


def test_ranks_are_told_from_labels_and_prefixes() -> None:
    assert rank_of(b"3: step 4\n") == 3
    assert rank_of(b"[rank5]: Traceback\n") == 5
    assert rank_of(b"slurmtrain: decision: stop\n") is None
    assert rank_of(b"1: [default2]:loss 3\n", tasks_per_node=4) == 6
    assert rank_of(b"1: loss 3\n", tasks_per_node=4) is None, "torchrun's own words are no rank's"


class Stage:
    """Plays the writers while the reader sleeps."""

    def __init__(self, acts: list[Callable[[], object]]) -> None:
        self.acts = acts
        self.now = 1000.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 2.5)  # so that the journal is read at every turn
        if self.acts:
            self.acts.pop(0)()
        assert self.now < 100_000, "follows for ever"


def test_following_survives_requeue_truncation_rotation_and_a_new_job(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    log = run.dir.log_file(str(job_id))

    def new_job() -> Path:
        second = run.submitted(slurm, 1)
        run.write(ev.Submitted(at=run.now(), who="user", attempt=1, submission=1, job_id=str(second)))
        return run.dir.log_file(str(second))

    def rotate() -> None:
        log.rename(log.with_suffix(".1"))
        _write(log.with_suffix(".1"), "four\n")
        _write(log, "five\n")

    later: list[Path] = []
    stage = Stage(
        [
            lambda: _write(log, "one\n"),
            lambda: (run.attempt(job_id), run.launch(0, log=f"logs/{log.name}"), _write(log, "tw")),
            lambda: (run.decided(0, Action.REQUEUE, RunState.PENDING), _write(log, "o\n")),
            lambda: (run.attempt(job_id, 1), _write(log, "three\n")),
            rotate,
            lambda: (log.write_text(""), None),
            lambda: _write(log, "six\n"),
            lambda: later.append(new_job()),
            lambda: _write(later[0], "seven\n"),
            lambda: (run.decided(1, Action.COMPLETE, RunState.COMPLETED), _write(later[0], "eight")),
        ]
    )
    following = Following(run.dir, slurm, sleep=stage.sleep, clock=stage.clock)
    lines = list(following.lines())
    text = b"".join(line.data for line in lines).decode()
    assert text == "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight"
    notices = [line.notice for line in lines if line.notice]
    assert any("replaced" in notice for notice in notices)
    assert any("truncated" in notice for notice in notices)
    assert not stage.acts


def test_following_ends_with_a_held_run_and_says_why_it_is_silent(tmp_path: Path) -> None:
    slurm, run = Slurm(nodes=("n1",)), make_run(tmp_path)
    slurm.submit(run.dir.batch_script)
    job_id = run.submitted(slurm)
    hold = lambda: (run.attempt(job_id), run.decided(0, Action.HOLD, RunState.HELD))  # noqa: E731
    stage = Stage([lambda: None, lambda: None, hold])
    lines = list(Following(run.dir, slurm, sleep=stage.sleep, clock=stage.clock).lines())
    assert next(line.notice for line in lines).startswith("Inqueue: it waits for")


def _logs(run: MadeRun, *words: str) -> str:
    done = CliRunner().invoke(command, [run.dir.run_id, *words, "--store", str(run.dir.path.parents[1])])
    assert done.exception is None, done.exception
    return done.stdout


def test_a_rank_that_printed_nothing_is_told(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    store = str(run.dir.path.parents[1])
    done = CliRunner().invoke(command, [run.dir.run_id, "--rank", "9", "--store", store])
    assert done.stdout == ""
    assert "rank 9 printed nothing; 2 ranks did, the highest is 1" in done.stderr


def test_the_command_prints_ranks_tails_and_json(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    assert _logs(run) == "".join(PARTS)
    assert _logs(run, "--rank", "1") == "1: b\n1: d\n"
    assert _logs(run, "--rank", "1", "--tail", "1") == "1: d\n"
    assert _logs(run, "--tail", "2") == "1: d\ndone\n"
    assert _logs(run, "--attempt", "0", "--tail", "3") == "0: c\nleaving\n=== 1.0\n"
    assert _logs(run, "--tail", "0") == ""
    assert _logs(run, "--rank", "9") == ""
    rows = [json.loads(line) for line in _logs(run, "--json").splitlines()]
    assert [row["text"] for row in rows] == "".join(PARTS).splitlines()
    assert {(row["text"], row["attempt"], row["launch"], row["rank"]) for row in rows} >= {
        ("1: b", 0, 0, 1),
        ("0: c", 0, 1, 0),
        ("1: d", 1, 0, 1),
    }


def test_a_pipe_gets_text_and_raw_gets_the_bytes(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    data = b"\x1b[31mred\x1b[0m \xff\x00\r10%\r20%\n"
    run.dir.log_file(str(job_id)).write_bytes(data)
    done = CliRunner().invoke(command, [run.dir.run_id, "--store", str(tmp_path), "--raw"])
    assert done.stdout_bytes == data
    assert _logs(run) == "20%\n"
    run.dir.log_file(str(job_id)).write_bytes(b"\x1b[31mred\x1b[0m \xff\x00\x1b]0;title\x07 end\n")
    assert _logs(run) == "red \ufffd\\x00 end\n"


def test_a_run_without_output_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = CliRunner().invoke(command, [run.dir.run_id, "--store", str(tmp_path)])
    assert done.exit_code == 0
    assert "nothing yet" in done.stderr


def test_lines_of_a_node_of_a_pattern_and_of_late(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    assert _logs(run, "--grep", "b|d") == "1: b\n1: d\ndone\n"
    assert _logs(run, "--grep", "^[ab]: ", "--rank", "1") == ""
    assert _logs(run, "--grep", "b|d", "--tail", "1") == "done\n"
    store = str(run.dir.path.parents[1])
    for bad in ("(", "a{99999999999}", "x" * 2000):
        done = CliRunner().invoke(command, [run.dir.run_id, "--grep", bad, "--store", store])
        assert isinstance(done.exception, UsageError), bad
    for bad in ("soon", "25:00", "2026-13-01", "10x"):
        done = CliRunner().invoke(command, [run.dir.run_id, "--since", bad, "--store", store])
        assert isinstance(done.exception, UsageError), bad
    assert _logs(run, "--since", "1h") == "done\n", "the journal says that the rest was written long ago"
    old = time.time() - 7200
    os.utime(run.dir.log_file(run.view.job_id), (old, old))
    assert _logs(run, "--since", "1h") == ""


def test_a_hostile_pattern_ends_with_a_sentence(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    _write(run.dir.log_file(run.view.job_id), "a" * 60 + "!\n")
    store = str(run.dir.path.parents[1])
    done = CliRunner().invoke(command, [run.dir.run_id, "--grep", "(a+)+$", "--store", store])
    assert isinstance(done.exception, SlowPatternError)
    assert "takes too long" in str(done.exception)


def test_since_begins_at_the_last_mark_before(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    folder = run.dir.attempt(1).launch(0)
    folder.mkdir(parents=True)
    now = time.time()
    log = run.dir.log_file(run.view.job_id)
    size = log.stat().st_size
    _write(log, "old\n")
    (folder / "log-times").write_text(f"{int(now - 7200)} {size}\nnonsense\n{int(now - 3000)} {size + 4}\n")
    _write(log, "new\n")
    assert _logs(run, "--since", "1h") == "old\nnew\n", "the mark before it is two hours old"
    assert _logs(run, "--since", "40m") == "new\n"


def test_logs_of_nodes_are_read_with_the_job_s(tmp_path: Path) -> None:
    run = _two_attempts(tmp_path)
    plan = json.loads(run.dir.plan.read_text())
    plan["spec"]["logs"] = {"per_node": True}
    plan["spec"]["resources"]["nodes"] = 2
    run.dir.plan.write_text(json.dumps(plan))
    folder = run.dir.attempt(0).launch(1)
    folder.mkdir(parents=True)
    for node in (0, 1):
        (folder / f"node-{node}.log").write_text(f"{node}: of node {node}\n")
    (folder / "node-x.log").write_text("nobody's\n")
    nodes = run.view.state.attempts[0].started.nodes  # type: ignore[union-attr]
    first = expand_nodes(nodes)[0]
    text = _logs(run)
    assert text.index("=== 0.1") < text.index("of node 0") < text.index("of node 1") < text.index("1: d")
    assert _logs(run, "--attempt", "0", "--launch", "1") == "0: c\n0: of node 0\n1: of node 1\n"
    assert _logs(run, "--launch", "0", "--attempt", "0") == PARTS[1]
    rows = [json.loads(line) for line in _logs(run, "--json", "--grep", "of node 0").splitlines()]
    assert [(row["attempt"], row["launch"], row["rank"], row["node"]) for row in rows] == [(0, 1, 0, first)]
    assert "of node 0" in _logs(run, "--node", first)
    assert "of node 1" not in _logs(run, "--node", first)
    store = str(run.dir.path.parents[1])
    run.decided(1, Action.COMPLETE, RunState.COMPLETED)
    done = CliRunner().invoke(command, [run.dir.run_id, "--node", "elsewhere", "--store", store])
    assert isinstance(done.exception, NotFoundError)


def test_a_giant_line_of_rubbish_is_bounded(tmp_path: Path) -> None:
    """64 MiB without a newline, with all that a log can hold; in a child, so that its memory can be told."""
    slurm, run = Slurm(), make_run(tmp_path)
    log = run.dir.log_file(str(run.submitted(slurm)))
    piece = b"\x00\xff\x1b[31m \x1b]0;x\x07 50%\r" + b"x" * 1003
    with log.open("wb") as stream:
        for _ in range(64):
            stream.write(piece * 1024)
    code = (
        "import sys; from pathlib import Path; from slurmtrain.cli.main import _run; "
        f"_run(['logs', {run.dir.run_id!r}, '--store', {str(tmp_path)!r}, *sys.argv[1:]]); "
        "sys.stderr.write(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])"  # of its own alone
    )
    for words in ([], ["--grep", "nowhere"], ["--tail", "3"], ["--json", "--tail", "1"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, timeout=120)
        assert int(done.stderr.split()[-1]) < 120_000, (words, done.stderr)
        assert b"\x1b" not in done.stdout
        assert b"\x00" not in done.stdout
