"""A run's copy in a folder: what is in it, when it is whole, and that nothing of it is sent twice or torn."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from make_run import SECRET, end_run, local_text, make_run

from slurmtrain.checkpoints.apart import check_apart
from slurmtrain.errors import RemoteError
from slurmtrain.ops.shipping import content
from slurmtrain.ops.shipping import one_pass as one_pass_module
from slurmtrain.ops.shipping.ledger import read_state
from slurmtrain.ops.shipping.report import Report
from slurmtrain.ops.shipping.shipper import Order, Shipper, TakenOverError, is_due, make_pace
from slurmtrain.store.lease import Lease
from slurmtrain.store.rundir import RunDir


def ship(run: RunDir, environ: dict[str, str] | None = None, *, in_job: bool = False) -> Report:
    return shipper(run, environ, in_job=in_job).ship()


def shipper(run: RunDir, environ: dict[str, str] | None = None, *, in_job: bool = False) -> Shipper:
    plan = run.read_plan()
    pace = make_pace(plan.spec.ship, 5.0, lambda _text: None)
    return Shipper(Order(run, plan, plan.spec.ship, environ or {}, in_job), pace, lambda _text: None)


def remote_files(remote: Path) -> dict[str, str]:
    return {str(p.relative_to(remote)): p.read_text() for p in sorted(remote.rglob("*")) if p.is_file()}


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def run(tmp_path: Path, remote: Path) -> RunDir:
    return make_run(tmp_path / "store", f"file://{remote}")


def test_the_copy_holds_logs_scenes_and_records_masked_and_a_manifest(run: RunDir, remote: Path) -> None:
    ship(run)
    copy = remote_files(remote / run.run_id)
    names = ["attempts/000/owner.json", "attempts/000/scene/n1/env.txt", "logs/train-1.log", "spec.yaml"]
    for name in names:
        assert copy[name] == local_text(run, name)
    assert set(copy) == {*names, "journal/submit.jsonl", "manifest.json"}
    assert SECRET not in "".join(copy.values())
    manifest = json.loads(copy["manifest.json"])
    assert manifest["complete"] is False
    assert {k: v["size"] for k, v in manifest["objects"].items()} == {
        k: len(v.encode()) for k, v in copy.items() if k != "manifest.json"
    }


def test_what_is_there_is_not_sent_again(run: RunDir, remote: Path) -> None:
    first = ship(run)
    before = {p: p.stat().st_mtime_ns for p in remote.rglob("*") if p.is_file()}
    second = ship(run)
    assert (first.sent, second.sent, second.unchanged) == (5, 0, 5)
    assert {p: p.stat().st_mtime_ns for p in remote.rglob("*") if p.is_file()} == before


def test_half_a_line_waits_until_it_is_whole_or_the_run_is_over(run: RunDir, remote: Path) -> None:
    log = run.log_file("1")
    log.write_text("whole\nhunter2S")
    ship(run)
    assert (remote / run.run_id / "logs/train-1.log").read_text() == "whole\n"
    log.write_text("whole\nhunter2Secret99 behind")
    end_run(run)
    assert ship(run).complete
    assert (remote / run.run_id / "logs/train-1.log").read_text() == "whole\n*** behind"


def test_a_long_log_grows_in_parts_and_is_one_object_in_the_end(
    run: RunDir, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_pass_module, "PART", 2000)
    monkeypatch.setattr(content, "_CONTEXT", 500)
    log = run.log_file("1")
    lines = [f"{n} {SECRET if n % 7 == 0 else 'x' * (n % 50)}\n" for n in range(600)]
    folder = remote / run.run_id / "logs"
    shipping = shipper(run)
    for upto in (40, 250, 251, 600):
        log.write_text("".join(lines[:upto]))
        shipping.ship()
        there = sorted((folder / "train-1.log.parts").iterdir()) if upto > 40 else [folder / "train-1.log"]
        assert "".join(p.read_text() for p in there) == local_text(run, "logs/train-1.log")
    assert len(there) > 5
    assert not (folder / "train-1.log").exists()
    sent = shipping.ship()
    assert sent.sent == 0
    log.write_text("".join([*lines, "one more\n"]))
    assert shipping.ship().sent_bytes < 5000  # the last part, not all of it
    end_run(run)
    assert ship(run).complete
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["train-1.log"]
    assert (folder / "train-1.log").read_text() == local_text(run, "logs/train-1.log")


def test_a_log_that_was_replaced_is_sent_anew(run: RunDir, remote: Path) -> None:
    ship(run)
    log = run.log_file("1")
    log.unlink()
    log.write_text("short\n")
    ship(run)
    assert (remote / run.run_id / "logs/train-1.log").read_text() == "short\n"


def test_links_pipes_and_memory_are_not_sent(run: RunDir, remote: Path, tmp_path: Path) -> None:
    outside = tmp_path / "id_rsa"
    outside.write_text("key")
    (run.logs / "leak.log").symlink_to(outside)
    (run.path / "attempts/000/scene/n2").symlink_to(tmp_path)
    os.mkfifo(run.logs / "pipe.log")
    (run.path / "attempts/000/scene/n1/core.1234").write_bytes(b"\0memory")
    assert ship(run).sent == 5
    assert "key" not in "".join(remote_files(remote).values())


def test_odd_names_become_plain_keys(run: RunDir, remote: Path) -> None:
    odd = os.fsdecode(b"a\nb%\xff\x1b.log")
    (run.logs / odd).write_text("x\n")
    ship(run)
    assert (remote / run.run_id / "logs/a%0Ab%25%FF%1B.log").read_text() == "x\n"


def test_losing_the_ledger_or_an_object_is_made_good(run: RunDir, remote: Path) -> None:
    ship(run)
    before = remote_files(remote)
    (ledger,) = run.ship.glob("ledger-*.json")
    ledger.write_text("{ torn")
    (remote / run.run_id / "logs/train-1.log").write_text("somebody else's")
    (remote / run.run_id / "spec.yaml").unlink()
    ship(run)
    after = remote_files(remote)
    assert {k: v for k, v in after.items() if "manifest" not in k} == {
        k: v for k, v in before.items() if "manifest" not in k
    }


def test_a_secret_that_only_the_job_knew_is_hidden_elsewhere(run: RunDir, remote: Path) -> None:
    from slurmtrain.ops.shipping.known import remember_secrets

    run.log_file("1").write_text("the key is sesame-Opening7 here\nsesameOpening7x is another word\n")
    remember_secrets(run.ship, {"WANDB_API_KEY": "sesame-Opening7", "HOME": "/root"})
    assert "Opening7" not in (run.ship / "known.json").read_text()
    ship(run)
    text = (remote / run.run_id / "logs/train-1.log").read_text()
    assert text == "the key is ***-*** here\nsesameOpening7x is another word\n"


def test_the_end_is_told_once_the_job_writes_no_more(run: RunDir) -> None:
    end_run(run, age_s=1)
    assert not ship(run).complete
    assert not ship(run, in_job=True).complete
    end_run(run, age_s=60)
    assert not ship(run, in_job=True).complete  # the job's own last line is still to come
    assert ship(run).complete
    assert read_state(run.ship).complete


def test_a_look_is_due_after_a_change_only(run: RunDir) -> None:
    assert is_due(run.path, time.time())
    past = time.time() - 100
    for folder, _, files in os.walk(run.path):
        for path in [Path(folder), *(Path(folder, name) for name in files)]:
            os.utime(path, (past, past))
    ship(run)
    assert not is_due(run.path, time.time())
    run.log_file("1").write_text("more\n")
    assert is_due(run.path, time.time())


def test_two_shippers_take_turns(run: RunDir) -> None:
    other = Lease(run.ship / "lease.json", 60)
    assert other.acquire() is None
    with pytest.raises(TakenOverError, match="is shipped by"):
        ship(run)
    assert not is_due(run.path, time.time())
    other.give_back()
    assert ship(run).sent


def test_a_storage_that_refuses_is_told_and_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = make_run(tmp_path / "store", f"file://{tmp_path}/file/below")
    with pytest.raises(RemoteError, match="Not a directory"):
        ship(run)
    state = read_state(run.ship)
    assert "Not a directory" in state.problem
    assert not is_due(run.path, time.time())
    assert is_due(run.path, time.time() + 700)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def write_checkpoint(run: RunDir, step: int, age_s: float = 60.0, *, whole: bool = True) -> Path:
    folder = run.path / "checkpoints" / f"step-{step}"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(bytes(range(256)) * step)
    (folder / "meta.json").write_text(json.dumps({"step": step}) if whole else '{"step": ')
    past = time.time() - age_s
    for path in folder.iterdir():
        os.utime(path, (past, past))
    return folder


@pytest.fixture
def with_checkpoints(tmp_path: Path, remote: Path) -> RunDir:
    return make_run(tmp_path / "store", f"file://{remote}", what=("logs", "checkpoints"), checkpoints=2)


def checkpoints_there(remote: Path, run: RunDir) -> list[str]:
    found = (remote / run.run_id / "checkpoints").glob("*.whole.json")
    return sorted(path.name.removesuffix(".whole.json") for path in found)


def test_the_newest_valid_checkpoints_are_kept_remotely(with_checkpoints: RunDir, remote: Path) -> None:
    run = with_checkpoints
    for step in (1, 2, 3):
        write_checkpoint(run, step)
    assert check_apart(run.path / "checkpoints/step-3").health.value in ("valid", "unknown")
    ship(run)
    assert checkpoints_there(remote, run) == ["step-2", "step-3"]
    copy = remote / run.run_id / "checkpoints"
    assert (copy / "step-3/weights.bin").read_bytes() == bytes(range(256)) * 3
    whole = json.loads((copy / "step-3.whole.json").read_text())
    assert whole["objects"]["checkpoints/step-3/weights.bin"]["size"] == 768
    write_checkpoint(run, 4)
    ship(run)
    assert checkpoints_there(remote, run) == ["step-3", "step-4"]
    assert not (copy / "step-2/weights.bin").exists()
    assert ship(run).sent == 0


def test_a_checkpoint_that_is_being_written_waits(with_checkpoints: RunDir, remote: Path) -> None:
    write_checkpoint(with_checkpoints, 1)
    write_checkpoint(with_checkpoints, 2, age_s=0)
    ship(with_checkpoints)
    assert checkpoints_there(remote, with_checkpoints) == ["step-1"]
    end_run(with_checkpoints)
    assert ship(with_checkpoints).complete
    assert checkpoints_there(remote, with_checkpoints) == ["step-1", "step-2"]


@pytest.mark.parametrize("change", ["rewrite", "delete"])
def test_a_checkpoint_that_changes_while_it_is_sent_is_not_called_whole(
    with_checkpoints: RunDir, remote: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    from slurmtrain.ops.shipping import checkpoints as module

    folder = write_checkpoint(with_checkpoints, 1)
    original: Callable[..., object] = module.binary_body

    def changing(path: Path, source: object) -> object:
        body = original(path, source)
        if path.name == "weights.bin":
            path.unlink() if change == "delete" else path.write_bytes(b"other")
        return body

    monkeypatch.setattr(module, "binary_body", changing)
    report = ship(with_checkpoints)
    assert "changed or was deleted" in report.notes[0]
    assert checkpoints_there(remote, with_checkpoints) == []
    assert not list((remote / with_checkpoints.run_id / "checkpoints").rglob("weights*"))
    assert folder.exists()


def test_links_out_of_a_checkpoint_are_not_followed(with_checkpoints: RunDir, remote: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    folder = write_checkpoint(with_checkpoints, 1)
    (folder / "out.bin").symlink_to(tmp_path / "secret")
    (folder / "in.bin").symlink_to("weights.bin")
    ship(with_checkpoints)
    copy = remote / with_checkpoints.run_id / "checkpoints/step-1"
    assert sorted(path.name for path in copy.iterdir()) == ["in.bin", "meta.json", "weights.bin"]
