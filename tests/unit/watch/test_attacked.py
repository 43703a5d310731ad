"""The watcher under attack: damaged runs, clocks that were wrong, two watchers at once, a watcher that dies."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from slurmtrain.core import events as ev
from slurmtrain.core.decision import Action, Decision, RunState, decision_to_dict
from slurmtrain.core.jobid import JobId
from slurmtrain.core.run import fold
from slurmtrain.core.spec import Spec, spec_to_dict
from slurmtrain.ops.act import requeue_from_outside
from slurmtrain.ops.claim import claim_attempt
from slurmtrain.ops.observe import observe
from slurmtrain.ops.recover import Care, look_after
from slurmtrain.ops.resubmit import resubmit
from slurmtrain.plugins.rulepacks import load_rules
from slurmtrain.store.journal import JournalWriter, read_journal
from slurmtrain.store.publish import publish_once, to_json
from slurmtrain.store.rundir import RunDir
from slurmtrain.testing import MemoryConfig, MemorySlurm
from slurmtrain.watch.lease import Lease
from slurmtrain.watch.loop import Watcher

RULES = load_rules().to_json()  # half a second of work


class Store:
    """A store with runs whose jobs crashed, and a Slurm in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.slurm = MemorySlurm(config=MemoryConfig(uid=1000))
        self.told: list[str] = []
        self.watcher = Watcher(root, self.slurm, 60.0, tell=lambda run, what: self.told.append(f"{run}: {what}"))

    def add(self, name: str) -> tuple[RunDir, JobId]:
        run = RunDir(self.root / "runs" / name)
        for folder in (run.journal, run.attempts, run.logs, run.submissions):
            folder.mkdir(parents=True)
        run.plan.write_text(json.dumps({"run_id": name, "spec": spec_to_dict(Spec(command=("x",))), "uid": 1000}))
        run.rules.write_text(RULES)
        run.batch_script.write_text("#!/bin/bash\n#SBATCH -N1 -t 60 --requeue\n")
        job = self.slurm.submit(run.batch_script)
        publish_once(run.submission(0), to_json({"job_id": str(job)}))
        journal = JournalWriter(run.journal, "test")
        journal.append(
            ev.RunCreated(at=0, who="user", name=name, user="u", uid=1000, host="login"),
            ev.Submitted(at=0, who="user", submission=0, job_id=str(job)),
        )
        self.slurm.advance(5)
        claim_attempt(run, {"job_id": str(job), "restart_count": 0, "host": "n1", "batch_pid": 1})
        started = {"attempt": 0, "job_id": str(job), "restart_count": 0, "host": "n1", "nodes": "n1"}
        journal.append(ev.AttemptStarted(at=1, who="gate", **started))
        journal.append(ev.LaunchStarted(at=1, who="agent", attempt=0, launch=0))
        run.log_file(str(job)).write_text("srun: error: n1: task 0: Segmentation fault\n")
        return run, job

    def crash(self, *jobs: JobId) -> None:
        for job in jobs:
            self.slurm.finish(job, 139)
        self.slurm.advance(3)

    def acts(self) -> list[str]:
        return [call.name for call in self.slurm.calls if call.name in {"requeue", "submit", "cancel"}]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def decided(run: RunDir) -> str | None:
    record = run.read_attempts()[-1].read_decision()
    return str(record["action"]) if record else None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan.json", '{"spec": {"command": ["x"], "retry": 5}}'),
        ("plan.json", '{"spec": {"command": ["x"], "retry": {"requeues": "many"}}}'),
        ("plan.json", "[1"),
        ("plan.json", '{"spec": {}}'),
        ("rules.json", '{"rules": [{"name": 3, "patterns": "(("}]}'),
        ("rules.json", "[]"),
        ("rules.json", "\x00\xff"),
        ("attempts/000/owner.json", "{"),
        ("submissions/000.json", '{"job_id": ["7"]}'),
        ("journal/test.jsonl", '{"seq":1,"kind":"decided","at":1,"who":"a","attempt":0,"decision":{"action":[]}}\n'),
    ],
)
def test_one_damaged_run_is_not_anothers_trouble(store: Store, name: str, text: str) -> None:
    bad, first = store.add("bad")
    good, second = store.add("good")
    store.crash(first, second)
    (bad.path / name).write_text(text)
    for _ in range(3):
        store.watcher.look_once()
        store.slurm.advance(20)
    assert decided(good) == "requeue"
    assert store.acts().count("requeue") <= 2


def test_what_no_one_foresaw_is_told_and_the_others_are_looked_after(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = store.add("bad")
    good, second = store.add("good")
    store.crash(first, second)
    real = RunDir.read_plan

    def read_plan(run: RunDir) -> object:
        if run.run_id == "bad":
            raise ZeroDivisionError("surprise")
        return real(run)

    monkeypatch.setattr(RunDir, "read_plan", read_plan)
    result = store.watcher.look_once()
    assert decided(good) == "requeue"
    assert [run for run, _ in result.problems] == ["bad"]
    assert any("surprise" in line for line in store.told)


def test_a_torn_decision_is_decided_again_and_kept(store: Store) -> None:
    run, job = store.add("run")
    attempt = run.read_attempts()[0]
    attempt.decision.write_text('{"action": "req')
    store.crash(job)
    store.watcher.look_once()
    assert decided(run) == "requeue"
    assert len(list(attempt.path.glob("decision.json.damaged-*"))) == 1
    assert store.acts().count("requeue") == 1


@pytest.mark.parametrize("ahead_s", [4e12, float("inf"), 40 * 86400.0])
def test_a_lease_from_a_wrong_clock_does_not_lock_for_ever(tmp_path: Path, ahead_s: float) -> None:
    until = time.time() + ahead_s
    (tmp_path / "watch.lease").write_text(json.dumps({"host": "x", "token": "t", "until": until, "seconds": 240}))
    assert Lease(tmp_path, 60).acquire() is None


def test_a_valid_lease_is_respected(tmp_path: Path) -> None:
    (tmp_path / "watch.lease").write_text(
        json.dumps({"host": "x", "pid": 3, "token": "t", "until": time.time() + 200, "seconds": 240})
    )
    assert Lease(tmp_path, 60).acquire() == "x:3"


def test_two_watchers_at_once_make_one_new_job(store: Store, tmp_path: Path) -> None:
    """Both found the old job gone: the second submission gives way, wherever the first stands."""
    run, job = store.add("run")
    store.crash(job)
    other = JournalWriter(run.journal, "other")

    real = store.slurm.submit

    def submit(*args: object, **kwargs: object) -> JobId:
        mine = real(*args, **kwargs)  # type: ignore[arg-type]
        if len(run.read_submissions()) == 1:  # between our sbatch and our record the other one wins
            publish_once(run.submission(1), to_json({"job_id": str(real(*args, **kwargs))}))  # type: ignore[arg-type]
        return mine

    store.slurm.submit = submit  # type: ignore[method-assign]
    winner = resubmit(run, store.slurm, other, "watcher")
    assert run.read_submissions()[1] == str(winner.base)
    store.slurm.advance(5)
    alive = [j for j, r in store.slurm.observe(None).jobs.items() if r.state.word in {"PENDING", "RUNNING"}]
    assert alive == [winner]


def test_watchers_with_an_old_view_make_no_second_job(store: Store) -> None:
    """Each looked before any of them acted; one after the other they come to submit."""
    run, job = store.add("run")
    store.crash(job)
    store.slurm.advance(10_000)  # purged
    decision = Decision(Action.REQUEUE, RunState.PENDING, "native_crash", "why", "program")
    attempt = run.read_attempts()[0]
    for number in range(3):
        journal = JournalWriter(run.journal, f"watch-{number}")
        requeue_from_outside(run, attempt, job, decision, store.slurm, journal)
    assert sorted(run.read_submissions()) == [0, 1]
    assert store.acts().count("submit") == 2, "the run's own and one more"


def test_watchers_with_an_old_view_claim_a_dead_execution_once(store: Store) -> None:
    run, job = store.add("run")
    shutil.rmtree(run.attempt(0).path)
    store.crash(job)
    views = [
        Care(
            run, run.read_plan(), fold(read_journal(run.journal)), job, observe(store.slurm, [job]), store.slurm,
            JournalWriter(run.journal, f"watch-{number}"),
        )
        for number in range(3)
    ]  # fmt: skip
    for care in views:
        look_after(care)
    assert [attempt.number for attempt in run.read_attempts()] == [0]
    assert store.acts().count("requeue") == 1


def test_a_claim_that_a_dead_watcher_left_is_taken_over(store: Store) -> None:
    """It had agreed on a number, and staged the directory without renaming it."""
    run, job = store.add("run")
    shutil.rmtree(run.attempt(0).path)
    (run.attempts / f"claim-{job}-0-0.json").write_text(json.dumps({"attempt": 0}))
    (run.attempts / ".000.abc.tmp").mkdir()
    store.crash(job)
    store.watcher.look_once()
    assert decided(run) == "requeue"
    assert [attempt.number for attempt in run.read_attempts()] == [0]


def test_a_watcher_killed_between_publishing_and_acting(store: Store) -> None:
    run, job = store.add("run")
    store.crash(job)
    decision = Decision(Action.REQUEUE, RunState.PENDING, "native_crash", "why", "program")
    run.read_attempts()[0].publish_decision({**decision_to_dict(decision), "decided_by": "watcher"})
    again = Watcher(store.root, store.slurm, 60.0)
    again.look_once()
    again.look_once()
    assert store.acts().count("requeue") == 1
    assert fold(read_journal(run.journal)).attempts[0].decision is not None


def test_an_ended_run_whose_job_slurm_forgot_is_let_go(store: Store) -> None:
    run, job = store.add("run")
    journal = JournalWriter(run.journal, "late")
    decision = Decision(Action.COMPLETE, RunState.COMPLETED, "no_failure", "done")
    run.read_attempts()[0].publish_decision(decision_to_dict(decision))
    journal.append(
        ev.Decided(at=2, who="agent", attempt=0, launch=0, decision=decision_to_dict(decision)),
        ev.JobSeen(at=3, who="watcher", attempt=0, job_id=str(job), restart_count=0, state="COMPLETING"),
    )
    store.slurm.finish(job, 0)
    store.slurm.advance(10_000)
    store.watcher.look_once()
    before = len(store.slurm.calls)
    assert store.watcher.look_once().runs == 0
    assert len(store.slurm.calls) == before, "nothing is asked for it any more"


def test_a_launch_that_slurm_ended_is_no_success(store: Store) -> None:
    """srun 22.05 ends with 0 when a node was lost; the launch's code alone must not complete the run."""
    run, job = store.add("run")
    journal = JournalWriter(run.journal, "agent")
    journal.append(ev.LaunchEnded(at=2, who="agent", attempt=0, launch=0, exit_code=0, stop_reason="slurm"))
    run.log_file(str(job)).write_text("0: step 5\nsrun: error: Node failure on n1\n")
    store.crash(job)
    store.watcher.look_once()
    assert decided(run) == "requeue"


def test_a_thousand_runs_are_one_question(store: Store) -> None:
    jobs = [store.add(f"run-{number:04d}")[1] for number in range(5)]
    plan, rules = store.root / "runs/run-0000/plan.json", store.root / "runs/run-0000/rules.json"
    for number in range(1000):
        run = RunDir(store.root / "runs" / f"more-{number:04d}")
        run.submissions.mkdir(parents=True)
        run.plan.hardlink_to(plan)
        run.rules.hardlink_to(rules)
        run.submission(0).write_text(json.dumps({"job_id": str(jobs[0])}))
    before = len(store.slurm.calls)
    began = time.monotonic()
    assert store.watcher.look_once().runs == 1005
    assert time.monotonic() - began < 20
    assert [call.name for call in store.slurm.calls[before:]] == ["observe"]
