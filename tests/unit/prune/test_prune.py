"""What goes, what stays and why; and that a run whose files were joined reads as before."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from ended_runs import ended
from made_runs import T0, MadeRun, Slurm, make_run

from slurmtrain.cli.bundle import command as bundle_command
from slurmtrain.cli.logs import command as logs_command
from slurmtrain.core.decision import Action, RunState
from slurmtrain.core.retention import Candidate, Limits, choose
from slurmtrain.core.spec import Checkpoint, Resources
from slurmtrain.errors import NotFoundError
from slurmtrain.evidence.manifest import TAKEN, NodeScene, Taking, write_manifest
from slurmtrain.ops.explain import explain_run
from slurmtrain.ops.prune import Row, Wanted, prune
from slurmtrain.ops.timeline import read_view
from slurmtrain.store.find import find_run
from slurmtrain.store.rundir import RunDir, runs_of

DAY = 86400.0
NOW = T0 + 100 * DAY
OLD = Limits(older_than_s=30 * DAY)


def _prune(store: Path, limits: Limits = OLD, **more: Any) -> dict[str, Row]:
    rows = prune(store, runs_of(store), Slurm(), Wanted(limits, **more), NOW)
    return {row.run_id: row for row in rows}


def test_the_floor_is_a_cycle_two_waits_and_a_week() -> None:
    run = Candidate("r", ended_at=0.0, cycle_s=3 * DAY, window_s=DAY)
    assert run.floor_s == 12 * DAY
    limits = Limits(older_than_s=DAY)
    assert choose([run], limits, 11.9 * DAY)["r"][0] is False
    assert choose([run], limits, 12.1 * DAY)["r"][0] is True


def test_number_and_size_let_the_oldest_go() -> None:
    runs = [Candidate(f"r{n}", ended_at=n * DAY, size=10) for n in range(6)]
    held = Candidate("held", protected="it is held", size=30)
    gone = lambda limits: [k for k, v in choose([*runs, held], limits, 100 * DAY).items() if v[0]]  # noqa: E731
    assert gone(Limits(keep_last=2)) == ["r0", "r1", "r2", "r3"]
    assert gone(Limits(max_bytes=60)) == ["r0", "r1", "r2"]
    assert gone(Limits()) == []


def test_old_runs_go_and_the_others_stay_with_a_reason(tmp_path: Path) -> None:
    ended(tmp_path, "old-1")
    ended(tmp_path, "pinned-1").dir.pinned_file.write_text("ann\n")
    make_run(tmp_path, "waiting-1")
    ended(tmp_path, "held-1", jobs=2, held=True)
    (ended(tmp_path, "torn-1").dir.journal / "x.jsonl").mkdir()
    ended(tmp_path, "long-1", resources=Resources(time_limit="99-00:00:00"))
    before = sorted(p.name for p in (tmp_path / "runs").rglob("*"))
    for dry_run in (True, False):
        rows = _prune(tmp_path, dry_run=dry_run)
        assert rows["old-1"].action == "deleted"
        assert rows["old-1"].freed > 0
        assert rows["pinned-1"].why == "it is pinned"
        assert rows["waiting-1"].why.startswith("it has not ended")
        assert rows["held-1"].why.startswith("it has not ended")
        assert "cannot be read whole" in rows["torn-1"].why
        assert "in any case" in rows["long-1"].why
        assert not any(row.problem for row in rows.values())
        if dry_run:
            assert sorted(p.name for p in (tmp_path / "runs").rglob("*")) == before
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == [
        "held-1", "long-1", "pinned-1", "torn-1", "waiting-1",
    ]  # fmt: skip


def test_the_newest_valid_checkpoint_stays_with_what_a_restart_needs(tmp_path: Path) -> None:
    run = ended(tmp_path, checkpoint=Checkpoint(pattern="step-*.npy"))
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    good = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"\0\0\0\0"
    for step in (1, 2, 3):
        (run.dir.path / "checkpoints" / f"step-{step}.npy").write_bytes(good if step < 3 else good[:-2])
    (run.dir.path / "results.csv").write_text("a person's\n")
    (run.dir.path / "logs" / "link").symlink_to("/etc")
    row = _prune(tmp_path)["train-1"]
    assert (row.action, row.problem) == ("trimmed", "")
    assert set(row.kept) == {"checkpoints/step-2.npy", "results.csv"}
    left = {str(p.relative_to(run.dir.path)) for p in run.dir.path.rglob("*") if p.is_file()}
    assert left == {
        "checkpoints/step-2.npy", "checkpoints/step-3.npy", "results.csv", "plan.json", "submissions.json",
        "pruned.json", "journal/000-merged.jsonl",
    }  # fmt: skip
    assert Path("/etc/passwd").exists()
    assert run.dir.read_plan().spec.checkpoint.pattern == "step-*.npy"
    assert read_view(run.dir).state.state is RunState.FAILED
    again = _prune(tmp_path)["train-1"]
    assert (again.action, again.freed) == ("kept", 0)


def test_checkpoints_elsewhere_are_left_alone_unless_asked(tmp_path: Path) -> None:
    elsewhere = tmp_path / "scratch"
    elsewhere.mkdir()
    for step in (1, 2, 3):
        (elsewhere / f"step-{step}").write_text("x")
    run = ended(tmp_path / "store", checkpoint=Checkpoint(dir=str(elsewhere), pattern="step-*"))
    run.dir.pinned_file.write_text("")
    _prune(tmp_path / "store", Limits(), checkpoints=1, outside=True)
    assert len(list(elsewhere.iterdir())) == 3, "of a pinned run nothing goes"
    run.dir.pinned_file.unlink()
    _prune(tmp_path / "store", Limits(), checkpoints=1)
    assert len(list(elsewhere.iterdir())) == 3
    row = _prune(tmp_path / "store", Limits(), checkpoints=2, outside=True)["train-1"]
    assert sorted(p.name for p in elsewhere.iterdir()) == ["step-2", "step-3"]
    assert row.freed > 0
    assert _prune(tmp_path / "store")["train-1"].action == "deleted"
    assert len(list(elsewhere.iterdir())) == 2


def _reads(run: RunDir) -> tuple[Any, ...]:
    store = str(run.path.parent.parent)
    printed = [
        CliRunner().invoke(logs_command, [run.run_id, *words, "--store", store]) for words in ([], ["--launch", "0"])
    ]
    assert all(done.exception is None for done in printed)
    view = read_view(run)
    explained = explain_run(run, None, NOW).to_dict()
    told = {
        key: explained[key] for key in ("headline", "diagnosis", "budgets", "launches", "timeline", "state", "damage")
    }
    told["damage"] = [line for line in told["damage"] if "batch script" not in line and "rules" not in line]
    return (*(done.stdout for done in printed), view.state.state, view.state.history, told)


def _count(run: RunDir) -> int:
    return sum(1 for path in run.path.rglob("*") if path.is_file() and "checkpoints" not in path.parts)


@pytest.mark.parametrize("jobs", [1, 9])
def test_a_run_whose_files_were_joined_reads_as_before(tmp_path: Path, jobs: int) -> None:
    run = ended(tmp_path, jobs=jobs)
    before, job = _reads(run.dir), str(run.view.job_id)
    assert _count(run.dir) > 15
    assert _prune(tmp_path, Limits())["train-1"].action == "compacted"
    assert _count(run.dir) <= 25
    assert _reads(run.dir) == before
    assert find_run(tmp_path, job).run_id == "train-1"
    assert run.dir.read_attempts()[-1].read_decision() is not None, "a late execution finds it at its gate"
    assert _prune(tmp_path, Limits())["train-1"].action == "kept"


def _give_node_logs(run: MadeRun) -> None:
    plan = json.loads(run.dir.plan.read_text())
    plan["spec"]["logs"] = {"per_node": True}
    run.dir.plan.write_text(json.dumps(plan))
    for launch in run.view.state.attempts[0].launches:
        for node in (0, 1):
            log = run.dir.attempt(0).launch(launch.number) / f"node-{node}.log"
            log.write_text(f"{node}: launch {launch.number}\n")


def test_logs_of_nodes_come_into_the_one_log(tmp_path: Path) -> None:
    run = ended(tmp_path)
    _give_node_logs(run)
    store = str(tmp_path)
    words = ["train-1", "--launch", "1", "--store", store]
    before = CliRunner().invoke(logs_command, words).stdout
    assert before.count(": launch 1") == 2
    _prune(tmp_path, Limits())
    assert CliRunner().invoke(logs_command, words).stdout == before
    assert "launch 0" not in before


@contextmanager
def _killed_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """A kill at the n-th change of the file system."""
    calls = [0]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **more: Any) -> Any:
            calls[0] += 1
            if calls[0] == number:
                raise KeyboardInterrupt
            return real(*args, **more)

        return act

    with monkeypatch.context() as patched:
        for name in ("rename", "replace", "unlink", "rmdir", "fsync"):
            patched.setattr(os, name, counted(getattr(os, name)))
        yield calls


def test_a_kill_at_any_step_of_joining_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 200):
        store = tmp_path / str(number)
        run = ended(store, jobs=2, launches=1)
        _give_node_logs(run)
        before = _reads(run.dir)
        try:
            with _killed_at(number, monkeypatch):
                _prune(store, Limits())
        except KeyboardInterrupt:
            assert _reads(run.dir) == before, f"killed at {number}"
            _prune(store, Limits())
            assert _reads(run.dir) == before, f"finished after a kill at {number}"
            assert _count(run.dir) <= 25
            assert not [p for p in run.dir.path.rglob("*") if p.name.startswith(".pruned")]
        else:
            assert number > 10
            return


def test_a_kill_at_any_step_of_deleting_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 200):
        store = tmp_path / str(number)
        run = ended(store, launches=1)
        try:
            with _killed_at(number, monkeypatch):
                _prune(store)
        except KeyboardInterrupt:
            if run.dir.path.exists():
                assert read_view(run.dir).state.ended
            _prune(store)
            assert list((store / "runs").iterdir()) == [], f"killed at {number}"
        else:
            assert number > 5
            return


def test_a_kill_at_any_step_of_trimming_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: set[str] = set()
    number = steps = 0  # the first is not killed
    while number <= steps:
        store = tmp_path / str(number)
        run = ended(store, launches=1, checkpoint=Checkpoint(pattern="step-*"))
        for step in (1, 2):
            (run.dir.path / "checkpoints" / f"step-{step}").write_text("x")
        with contextlib.suppress(KeyboardInterrupt), _killed_at(number, monkeypatch) as calls:
            _prune(store)
        assert (run.dir.path / "checkpoints" / "step-2").exists(), f"killed at {number}"
        row = _prune(store)["train-1"]
        assert not row.problem, f"killed at {number}"
        names = {str(path.relative_to(run.dir.path)) for path in run.dir.path.rglob("*")}
        assert names == (left or names), f"killed at {number}"
        left = names
        assert _prune(store)["train-1"].action == "kept"
        number, steps = number + 1, steps or calls[0]
    assert steps > 5
    assert "logs" not in left


def test_checkpoints_that_another_run_goes_on_with_are_left_alone(tmp_path: Path) -> None:
    """``restart --resume`` trains in the old run's folder."""
    old = ended(tmp_path, checkpoint=Checkpoint(pattern="step-*"))
    folder = old.dir.path / "checkpoints"
    for step in (1, 2, 3):
        (folder / f"step-{step}").write_text("x")
    new = make_run(tmp_path, "train-2", checkpoint=Checkpoint(dir=str(folder), pattern="step-*"))
    for only in (runs_of(tmp_path), [old.dir]):
        rows = {row.run_id: row for row in prune(tmp_path, only, Slurm(), Wanted(OLD, 1, outside=True), NOW)}
        assert rows["train-1"].why == "run train-2 goes on in its checkpoint folder"
        assert len(list(folder.iterdir())) == 3
    new.decided(new.attempt(new.submitted(Slurm())), Action.COMPLETE, RunState.COMPLETED)
    assert _prune(tmp_path)["train-1"].action == "trimmed"
    assert [path.name for path in folder.iterdir()] == ["step-3"]


@pytest.mark.parametrize("name", ["attempts", "logs", "journal", "submissions", "attempts/000", "attempts/000/nodes"])
@pytest.mark.parametrize("limits", [Limits(), OLD])
def test_links_lead_prune_nowhere(tmp_path: Path, name: str, limits: Limits) -> None:
    run = ended(tmp_path / "store")
    outside = tmp_path / "outside"
    (run.dir.path / name).rename(outside)
    (run.dir.path / name).symlink_to(outside)
    (outside / ".pruned-x").write_text("somebody's")
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    _prune(tmp_path / "store", limits)
    _prune(tmp_path / "store", limits)
    assert {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()} == before


def test_a_run_that_is_written_to_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ended(tmp_path)
    real = Path.rename

    def rename(source: Path, target: Path) -> Path:
        if source == run.dir.path:
            run.launch(0, 9)
        return real(source, target)

    monkeypatch.setattr(Path, "rename", rename)
    row = _prune(tmp_path)["train-1"]
    assert row.problem.startswith("somebody wrote into it")
    assert run.dir.path.is_dir()
    with pytest.raises(NotFoundError):
        find_run(tmp_path, "nobody")


def test_a_scene_that_was_folded_is_explained_and_bundled_with_its_secrets_masked(tmp_path: Path) -> None:
    run = ended(tmp_path)
    scene = run.dir.attempt(0).launch(1) / "scene" / "n1"
    (scene / "12-kernel").mkdir(parents=True)
    secret = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    (scene / "12-kernel" / "dmesg.txt").write_text(f"NVRM: Xid 79, token {secret}\n")
    taking = Taking("12-kernel", TAKEN, files=("dmesg.txt",), notes=("Xid 79: fallen off the bus",))
    write_manifest(NodeScene(scene, "n1", "failed", "oom", NOW, 1.0, 60.0, complete=True, takings=(taking,)))
    before = explain_run(run.dir, None, NOW)
    assert [one.text for one in before.findings] == ["Xid 79: fallen off the bus"]
    _prune(tmp_path, Limits())
    assert not scene.exists()
    assert (run.dir.path / "folded.zip").stat().st_mode & 0o077 == 0
    after = explain_run(run.dir, None, NOW)
    assert [one.text for one in after.findings] == ["Xid 79: fallen off the bus"]
    assert after.findings[0].path == str(run.dir.path / "folded.zip")
    out = tmp_path / "bundle.tar.gz"
    done = CliRunner().invoke(bundle_command, ["train-1", "--out", str(out), "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    with tarfile.open(out) as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
    kernel = next(data for name, data in files.items() if name.endswith("scene/n1/12-kernel/dmesg.txt"))
    assert b"Xid 79" in kernel
    assert not any(secret.encode() in data for data in files.values())
    assert not any(name.endswith("folded.zip") for name in files)


def test_core_files_and_saved_containers_are_neither_folded_nor_bundled(tmp_path: Path) -> None:
    run = ended(tmp_path)
    launch = run.dir.attempt(0).launch(1)
    for name in ("cores/core-rank-0-4711", "images/n1.tar"):
        (launch / name).parent.mkdir(parents=True)
        (launch / name).write_bytes(b"memory with secrets")
    out = tmp_path / "bundle.tar.gz"
    done = CliRunner().invoke(bundle_command, ["train-1", "--out", str(out), "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    with tarfile.open(out) as archive:
        assert not any("cores/" in name or "images/" in name for name in archive.getnames())
    _prune(tmp_path, Limits())
    assert not launch.exists()
    with zipfile.ZipFile(run.dir.path / "folded.zip") as folded:
        assert not any("cores" in name or "images" in name for name in folded.namelist())
