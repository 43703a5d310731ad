"""Waiting, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from made_runs import MadeRun, Slurm, make_run

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, RunState
from slurmtrain.ops.wait import Wait, Waited
from slurmtrain.testing import FaultKind


class Clock:
    """Sleeping moves it; ``plan`` are things that happen at a time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.plan: list[tuple[float, Callable[[], None]]] = []
        self.naps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a busy loop"
        self.naps.append(seconds)
        self.now += seconds
        for due, happen in [item for item in self.plan if item[0] <= self.now - 1000.0]:
            self.plan.remove((due, happen))
            happen()
        assert self.now < 1e6, "waits for ever"


def _wait(runs: list[MadeRun], slurm: Slurm, clock: Clock, **more: object) -> tuple[Waited, list[str]]:
    news: list[str] = []
    wait = Wait(
        [run.dir for run in runs],
        slurm,
        sleep=clock.sleep,
        clock=clock,
        tell=lambda run, text: news.append(f"{run}: {text}"),
        **more,  # type: ignore[arg-type]
    )
    return wait.until_ended(), news


def _started(store: Path, slurm: Slurm, run_id: str) -> MadeRun:
    run = make_run(store, run_id)
    run.attempt(run.submitted(slurm))
    run.launch(0)
    return run


def test_it_ends_when_the_last_run_has_ended(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    runs = [_started(tmp_path, slurm, name) for name in ("a", "b")]
    clock.plan.append((50, lambda: runs[0].decided(0, Action.COMPLETE, RunState.COMPLETED)))
    clock.plan.append((200, lambda: runs[1].decided(0, Action.COMPLETE, RunState.COMPLETED)))
    waited, news = _wait(runs, slurm, clock)
    assert waited.all_completed
    assert waited.open_runs == ()
    assert [line.partition(":")[0] for line in news if "Completed" in line] == ["a", "b"]
    assert 200 <= clock.now - 1000 <= 206, "within one look of the end"


def test_a_failed_run_is_no_success(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    clock.plan.append((20, lambda: run.decided(0, Action.STOP, RunState.FAILED)))
    waited, _ = _wait([run], slurm, clock)
    assert not waited.all_completed
    assert waited.rows[0].state is RunState.FAILED


def test_a_held_run_goes_on_waiting_unless_asked(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    clock.plan.append((20, lambda: run.decided(0, Action.HOLD, RunState.HELD)))
    waited, _ = _wait([run], slurm, clock, timeout_s=100.0)
    assert waited.timed_out
    assert waited.open_runs == ("a",)
    waited, _ = _wait([run], slurm, Clock(), or_held=True)
    assert waited.rows[0].state is RunState.HELD
    assert not waited.all_completed


def test_slurm_is_asked_once_an_interval_for_all(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    runs = [_started(tmp_path, slurm, f"run-{number}") for number in range(10)]
    slurm.calls.clear()
    _wait(runs, slurm, clock, timeout_s=300.0, slurm_s=30.0)
    assert 9 <= len(slurm.calls) <= 11
    assert {call.name for call in slurm.calls} == {"observe"}
    assert len(clock.naps) < 120


def test_it_gives_up_when_slurm_is_silent_for_long(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    slurm.inject(FaultKind.UNAVAILABLE, "observe", times=10_000)
    waited, news = _wait([run], slurm, clock, unreachable_s=600.0)
    assert "Unable to contact" in waited.unreachable
    assert len(news) == 1, "told once"
    assert 600 <= clock.now - 1000 <= 640


def test_an_outage_that_passes_is_waited_out(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    slurm.inject(FaultKind.UNAVAILABLE, "observe", times=10)
    clock.plan.append((2000, lambda: run.decided(0, Action.COMPLETE, RunState.COMPLETED)))
    waited, _ = _wait([run], slurm, clock, unreachable_s=600.0)
    assert waited.all_completed


def test_a_run_that_nobody_decides_about_is_told(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    job_id = next(iter(slurm.observe().jobs))
    clock.plan += [(20, lambda: slurm.finish(job_id, 1)), (21, lambda: slurm.advance(10))]
    _, news = _wait([run], slurm, clock, timeout_s=200.0)
    assert [line for line in news if "watch --once" in line]


def test_a_torn_or_strange_journal_is_waited_on_all_the_same(tmp_path: Path) -> None:
    slurm, clock = Slurm(), Clock()
    run = _started(tmp_path, slurm, "a")
    (run.dir.journal / "torn.jsonl").write_bytes(b'{"seq": 3, "kind": "decided", "at"')
    run.write(ev.JobSeen(at=1.0, who="watcher", job_id="1", restart_count=0, state=None))  # type: ignore[arg-type]
    clock.plan.append((20, lambda: run.decided(0, Action.COMPLETE, RunState.COMPLETED)))
    waited, _ = _wait([run], slurm, clock)
    assert waited.all_completed
