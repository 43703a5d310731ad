"""explain always has an answer: for every state of a run, and for directories that are damaged or hostile."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import T0, MadeRun, Slurm, make_run

from slurmtrain.cli.explain_screen import Screen
from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.spec import Retry
from slurmtrain.ops.explain import Explanation, explain_run
from slurmtrain.ops.page import make_page
from slurmtrain.ops.status import read_status
from slurmtrain.testing import FaultKind

OOM = {
    "cause": "cuda_oom", "family": "gpu_app", "retryable": True, "action": "requeue", "rank": 3, "node": "n2",
    "confidence": 0.9, "sentence": "rank 3 ran out of GPU memory",
    "evidence": [{"line": 2, "text": "3: torch.OutOfMemoryError: CUDA out of memory", "file": "logs/train-1.log"}],
}  # fmt: skip


def _screen(found: Explanation, width: int = 100) -> str:
    return click.unstyle("\n".join(Screen(width).explanation(found)))


def _failed(store: Path, slurm: Slurm) -> MadeRun:
    run = make_run(store, retry=Retry(in_place=2, requeues=1))
    job_id = run.submitted(slurm)
    run.attempt(job_id, nodes="n[1-2]")
    for number in (0, 1):
        run.launch(0, number)
        run.launch_ended(0, number)
        run.diagnosed(0, number, **OOM)
        run.decided(0, Action.RESTART_IN_PLACE, RunState.RUNNING, launch=number, cause="cuda_oom")
    run.launch(0, 2)
    run.launch_ended(0, 2)
    run.diagnosed(0, 2, **OOM)
    run.decided(0, Action.STOP, RunState.FAILED, launch=2, cause="cuda_oom", reason="the same again, no retry can cure")
    slurm.finish(job_id, 1)
    return run


def test_one_screen_says_what_where_why_and_what_next(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _failed(tmp_path, slurm)
    text = _screen(explain_run(run.dir, slurm, T0 + 60))
    for wanted in (
        "rank 3", "node n2", "cuda_oom", "logs/train-1.log:2", "CUDA out of memory", "no retry can cure",
        "restarts in place 2 of 2", "requeues 0 of 1", "slurmtrain restart train-1", "micro batch", "0.2",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert len(text.splitlines()) <= 60


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    slurm = Slurm()
    run = _failed(tmp_path, slurm)
    for line in filter(None, _screen(explain_run(run.dir, slurm, T0 + 60), width).splitlines()):
        *label, path = line.split()
        whole = (path.startswith("/") and len(label) < 2) or label[:1] == ["slurmtrain"]  # to be copied
        assert len(line) <= max(40, width) or whole, line


def test_every_state_of_a_run_has_an_answer_and_a_next_step(tmp_path: Path) -> None:
    slurm = Slurm(nodes=("n1", "n2"))
    made = {name: make_run(tmp_path, name) for name in ("none", "running", "waiting", "held", "done", "stopped")}
    running = made["running"].submitted(slurm)
    slurm.submit(made["none"].dir.batch_script)
    slurm.advance(5)
    made["running"].attempt(running)
    made["running"].launch(0)
    made["waiting"].submitted(slurm)
    for name, action, state in (
        ("held", Action.HOLD, RunState.HELD),
        ("done", Action.COMPLETE, RunState.COMPLETED),
        ("stopped", Action.STOP, RunState.STOPPED),
    ):
        made[name].attempt(made["waiting"].submitted(slurm))
        made[name].decided(0, action, state)
    wanted = {
        "none": "Pending", "running": "logs running --follow", "waiting": "starts by itself",
        "held": "slurmtrain release held", "done": "has finished", "stopped": "slurmtrain restart stopped",
    }  # fmt: skip
    for name, words in wanted.items():
        found = explain_run(made[name].dir, slurm, T0 + 60)
        assert words in _screen(found), _screen(found)
        json.dumps(found.to_dict())


@pytest.mark.parametrize(("last", "told"), [("nan", True), ("0.25", False)])
def test_a_run_that_finished_with_a_loss_that_is_no_number_says_so(tmp_path: Path, last: str, told: bool) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    text = f"0: step 90/100 loss nan\n0: step 100/100 loss {last}\n"
    run.dir.log_file("1").write_text(text + "0: step 1/1 loss inf\n")  # what comes behind the launch is not its
    run.launch(0, log="logs/train-1.log")
    run.launch_ended(0, code=0, log_end=len(text))
    run.decided(0, Action.COMPLETE, RunState.COMPLETED, cause="no_failure")
    assert ("its last loss was no number" in explain_run(run.dir, slurm, T0 + 60).headline) is told


def test_a_run_runs_since_its_newest_attempt_began(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    run.attempt(job_id)
    run.launch(0)
    run.launch_ended(0)
    run.decided(0, Action.REQUEUE, RunState.INQUEUE, cause="preempted")
    slurm.advance(5)
    run.clock = itertools.count(3600)
    run.attempt(job_id, restart_count=1)
    run.launch(1)
    first, second = (attempt.started for attempt in run.state.attempts)
    assert first is not None
    assert second is not None
    found = explain_run(run.dir, slurm, T0 + 4000)
    assert time.strftime("%H:%M:%S", time.localtime(float(second.at))) in found.headline


def test_the_end_of_the_output_is_shown_where_nothing_tells(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    job_id = run.submitted(slurm)
    log = run.dir.log_file(str(job_id))
    before, own = "of another launch\n", "".join(f"line {n}\n" for n in range(30))
    log.write_text(before + own + "of the next launch\n")
    run.attempt(job_id)
    run.launch(0, log=f"logs/{log.name}", offset=len(before))
    run.launch_ended(0, log_end=len(before + own))
    run.diagnosed(0, 0, cause="unknown", sentence="nothing says why")
    run.decided(0, Action.STOP, RunState.FAILED)
    texts = [line.text for line in explain_run(run.dir, slurm, T0).evidence]
    assert texts == [f"line {n}" for n in range(22, 30)]


def test_the_task_that_ended_first_is_named_where_the_log_tells_no_rank(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.launch(0)
    exits = ({"rank": 0, "node": "n1", "exit_code": None, "signal": 9, "order": 1},
             {"rank": 2, "node": "n2", "exit_code": 9, "signal": None, "order": 0})  # fmt: skip
    run.write(ev.LaunchEnded(at=T0, who="agent", attempt=0, launch=0, exit_code=137, rank_exits=exits))
    run.diagnosed(0, 0, cause="unknown", sentence="nothing says why")
    run.decided(0, Action.STOP, RunState.FAILED)
    assert "first to end: rank 2 on node n2 with exit code 9" in " ".join(
        _screen(explain_run(run.dir, slurm, T0)).split()
    )


def test_hostile_text_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\u202e$(rm -rf x)"
    slurm, run = Slurm(), make_run(tmp_path, name=f"n{evil}")
    run.attempt(run.submitted(slurm), nodes=evil)
    run.launch(0, log=evil)
    run.launch_ended(0)
    run.diagnosed(
        0, 0, **{**OOM, "sentence": evil, "node": evil, "evidence": [{"line": 1, "text": evil, "file": evil}]}
    )
    run.decided(0, Action.STOP, RunState.FAILED, reason=evil, cause=evil)
    text = _screen(explain_run(run.dir, slurm, T0))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


def test_a_path_is_never_broken_so_that_it_can_be_copied(tmp_path: Path) -> None:
    slurm, path, run = Slurm(), "/scratch/" + "deep/" * 30 + "step-100", make_run(tmp_path)
    run.attempt(run.submitted(slurm))
    run.decided(0, Action.STOP, RunState.FAILED, reason=f"cannot read {path}")
    assert path in _screen(explain_run(run.dir, slurm, T0 + 60), 60)


def test_slurm_down_is_told_and_the_rest_is_there(tmp_path: Path) -> None:
    slurm, run = Slurm(), make_run(tmp_path)
    run.submitted(slurm)
    slurm.inject(FaultKind.UNAVAILABLE)
    found = explain_run(run.dir, slurm, T0)
    assert "Unable to contact" in found.slurm_error
    assert found.status.state is RunState.INQUEUE


@pytest.mark.parametrize("missing", ["plan.json", "job.sbatch", "journal", "attempts", "logs", "submissions"])
def test_a_missing_part_is_named_or_harmless(tmp_path: Path, missing: str) -> None:
    slurm = Slurm()
    run = _failed(tmp_path, slurm)
    path = run.dir.path / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = explain_run(run.dir, slurm, T0)
    assert _screen(found)
    if missing in {"plan.json", "job.sbatch", "journal"}:
        assert any(missing in line for line in found.damage), found.damage


def test_torn_lines_are_counted(tmp_path: Path) -> None:
    slurm = Slurm()
    run = _failed(tmp_path, slurm)
    with (run.dir.journal / "agent-test.jsonl").open("ab") as stream:
        stream.write(b'{"seq": 99, "kind": "deci')
    (run.dir.journal / "other.jsonl").write_bytes(b"\x00\x00\x00\n\xff\xfe\n")
    found = explain_run(run.dir, slurm, T0)
    assert any(line.startswith("3 lines") for line in found.damage), found.damage
    assert found.status.state is RunState.FAILED


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**18) | st.floats() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=6), children, max_size=3),
    max_leaves=5,
)
_KEYS = sorted({*OOM, "state", "reason", "exclude", "delay_s", "budget", "rollback", "suspects", "notes"} - {"action"})
_NESTED = st.fixed_dictionaries(
    {"action": st.sampled_from(["stop", "requeue", "restart_in_place", "hold", 3])},
    optional=dict.fromkeys(_KEYS, _JSON) | {"state": st.sampled_from([*(state.value for state in RunState), 7])},
)
_VALUES = {
    "at": st.floats(0, 2e9) | _JSON, "attempt": st.integers(-1, 3), "launch": st.integers(-1, 3),
    "diagnosis": _NESTED, "decision": _NESTED, "job_id": st.sampled_from(["1", "2", "x"]) | _JSON,
    "log_file": st.sampled_from(["logs/train-1.log", "../../etc/passwd", "/etc/passwd"]) | _JSON,
    "state": st.sampled_from(["PENDING", "RUNNING", "FAILED"]) | _JSON,
}  # fmt: skip


def _event(kind: type[ev.Event]) -> st.SearchStrategy[dict[str, Any]]:
    names = kind.__dataclass_fields__
    values = {name: _VALUES.get(name, _JSON) for name in names if name != "kind"}
    return st.fixed_dictionaries({"seq": st.integers(0, 50), "kind": st.just(kind.kind), **values})


_LINES = st.lists(st.sampled_from(sorted(ev.KINDS.values(), key=str)).flatmap(_event), max_size=12)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lines=_LINES)
def test_no_journal_whatever_it_holds_brings_it_down(
    tmp_path_factory: pytest.TempPathFactory, lines: list[Any]
) -> None:
    store = tmp_path_factory.mktemp("store")
    run = make_run(store)
    (run.dir.journal / "strange.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = explain_run(run.dir, Slurm(), T0)
    assert _screen(found)
    assert "\n".join(Screen(80).timeline(found)) is not None
    assert make_page(found, (), T0).rstrip().endswith("</html>")
    json.dumps(found.to_dict())
    json.dumps([row.to_dict() for row in read_status([run.dir], None, T0).rows])
    shutil.rmtree(store)


def test_an_unknown_run_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slurmtrain.cli.explain import command
    from slurmtrain.errors import NotFoundError

    monkeypatch.setenv("SLURMTRAIN_STORE", str(tmp_path))
    done = CliRunner().invoke(command, ["nothere"])
    assert isinstance(done.exception, NotFoundError)


def test_every_key_of_the_json_is_documented(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "explain.md").read_text("utf-8")
    told = explain_run(_failed(tmp_path, Slurm()).dir, None, T0)
    own = set(told.to_dict()) - set(told.status.to_dict())
    assert sorted(key for key in own if f"`{key}`" not in page) == []
