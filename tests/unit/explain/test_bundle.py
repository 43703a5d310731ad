"""The bundle of a run: all that explains it, no secret, nothing of anybody else's, whole or not there."""

from __future__ import annotations

import errno
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from page_kinds import HOSTILE, Teller, make

from slurmtrain.cli.bundle import command
from slurmtrain.core import events as ev
from slurmtrain.errors import StoreError
from slurmtrain.store.archive import Member, write_archive

# Secrets as they look; each is put into several places.
SECRETS = {
    "github": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "wandb": "0123456789abcdef0123456789abcdef01234567",
    "hf": "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz12345678",
    "aws": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzEXAMPLEKEY",
    "url": "tr0ub4dor-and-3",
    "option": "correct-horse-battery-9",
    "pem": "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj",
}


def _bundle(store: Path, run: str, *words: str) -> tuple[dict[str, bytes], dict[str, Any], Path]:
    out = store / "bundle.tar.gz"
    done = CliRunner().invoke(
        command,
        [run, "--out", str(out), "--json", *words],
        env={"SLURMTRAIN_STORE": str(store)},
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    with tarfile.open(out) as archive:
        members = archive.getmembers()
        assert all(
            member.isreg() and member.name.startswith(f"{run}/") and ".." not in member.name for member in members
        )
        files = {m.name.removeprefix(f"{run}/"): archive.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    return files, json.loads(files["MANIFEST.json"]), out


def _plant(told: Teller) -> None:
    """Every secret, in environment, command line, git remote URL, log and scene."""
    run = told.run.dir
    (run.path / "spec.yaml").write_text(
        f"environment:\n  variables:\n    WANDB_API_KEY: {SECRETS['wandb']}\n", encoding="utf-8"
    )
    plan = json.loads(run.plan.read_text("utf-8"))
    plan["spec"]["command"] += ["--api-key", SECRETS["option"]]
    plan["spec"]["environment"]["variables"] = {
        "WANDB_API_KEY": SECRETS["wandb"],
        "AWS_SECRET_ACCESS_KEY": SECRETS["aws"],
    }
    run.plan.write_text(json.dumps(plan), encoding="utf-8")
    run.batch_script.write_text(f"export AWS_SECRET_ACCESS_KEY={SECRETS['aws']}\n", encoding="utf-8")
    lines = [f"the key {SECRETS['option']} was refused", f"cloning https://ann:{SECRETS['url']}@git.example.org/a.git",
             f"wandb: {SECRETS['wandb']}", f"using {SECRETS['hf']} and {SECRETS['github']}",
             "-----BEGIN PRIVATE KEY-----", SECRETS["pem"], "-----END PRIVATE KEY-----"]  # fmt: skip
    told.log.write_text(told.log.read_text("utf-8") + "\n".join(lines) + "\n", encoding="utf-8")
    scene = run.attempt(1).launch(0) / "scene" / "n3" / "git"
    scene.mkdir(parents=True)
    (scene / "remote.txt").write_text(f"origin https://ann:{SECRETS['url']}@git.example.org/a.git\n", encoding="utf-8")
    (scene / f"{SECRETS['github']}.txt").write_text("a file named like a secret\n", encoding="utf-8")
    told.run.write(
        ev.StopRequested(at=told.at, who="user", by="ann", reason=f"Authorization: Bearer {SECRETS['github']}")
    )


def test_it_holds_what_explains_the_run_and_no_secret(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    _plant(told)
    files, manifest, out = _bundle(tmp_path, "llama-8b-sft")
    for name in (
        "explain.txt",
        "explain.html",
        "explain.json",
        "job.sbatch",
        "plan.json",
        "spec.yaml",
        "logs/train-1.log",
    ):
        assert name in files, sorted(files)
    assert any(name.startswith("journal/") for name in files)
    assert "attempts/001/launches/0/scene/n3/git/remote.txt" in files
    for name, secret in SECRETS.items():
        for place, data in files.items():
            assert secret.encode() not in data, (name, place)
            assert secret not in place
    assert b"Rank 3 ran out of GPU memory" in files["explain.txt"]
    assert next(row for row in manifest["files"] if row["name"] == "job.sbatch")["secrets_masked"] is True
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_links_devices_dumps_and_binaries_stay_out_and_are_named(tmp_path: Path) -> None:
    told = make("finished", tmp_path)
    (tmp_path / "outside.txt").write_text("of somebody else\n", encoding="utf-8")
    launch = told.run.dir.attempt(0).launch(0)
    launch.mkdir(parents=True)
    (launch / "link.txt").symlink_to(tmp_path / "outside.txt")
    (launch / "folder").symlink_to(tmp_path)
    os.mkfifo(launch / "fifo")
    (launch / "core.4711").write_text("looks like text\n", encoding="utf-8")
    (launch / "model.safetensors").write_text("looks like text\n", encoding="utf-8")
    (launch / "dump").write_bytes(b"\x80\x04\x95\x00\x00")
    (launch / "error.json").write_text("{}", encoding="utf-8")
    (told.run.dir.path / "checkpoints" / "step-1.pt").write_text("weights", encoding="utf-8")
    files, manifest, _ = _bundle(tmp_path, "resnet50")
    assert "attempts/000/launches/0/error.json" in files
    assert not any(b"of somebody else" in data for data in files.values())
    why = {row["name"].rpartition("/")[2]: row["why"] for row in manifest["left_out"]}
    assert set(why) >= {"link.txt", "folder", "fifo", "core.4711", "model.safetensors", "dump", "checkpoints"}, why
    assert "link" in why["link.txt"]
    assert why["dump"] == "binary"


def test_a_huge_log_is_cut_around_what_matters(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    head = told.log.read_text("utf-8")
    with told.log.open("a", encoding="utf-8") as stream:
        for _ in range(60):
            stream.write("x" * 99 + "\n" + ("y" * 99 + "\n") * 1000)
        stream.write("the very last line\n")
    files, manifest, _ = _bundle(tmp_path, "llama-8b-sft")
    log = files["logs/train-1.log"]
    assert log.startswith(head.encode())
    assert log.endswith(b"the very last line\n")
    assert b" bytes left out ===" in log
    assert len(log) < 3 << 20
    assert next(row for row in manifest["files"] if row["name"] == "logs/train-1.log")["of_bytes"] > 6_000_000


def test_a_key_that_is_cut_in_two_leaves_no_half(tmp_path: Path) -> None:
    told = make("finished", tmp_path)
    body = "".join(f"{SECRETS['pem']}\n" for _ in range(2000))
    text = "start\n" + "z" * 999 + "\n"
    filler = ("z" * 99 + "\n") * 3000
    told.log.write_text(
        text
        + filler
        + "-----BEGIN PRIVATE KEY-----\n"
        + body
        + "-----END PRIVATE KEY-----\n"
        + ("z" * 99 + "\n") * 20_500,
        encoding="utf-8",
    )
    files, _, _ = _bundle(tmp_path, "resnet50")
    assert SECRETS["pem"].encode() not in files["logs/train-1.log"]
    assert len(files["logs/train-1.log"]) > 1 << 20


def test_it_stays_below_its_size_and_says_what_is_missing(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    folder = told.run.dir.attempt(0).launch(0)
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"big-{number:02d}.txt").write_text("a" * 50_000, encoding="utf-8")
    files, manifest, _ = _bundle(tmp_path, "llama-8b-sft", "--max-size", "300K")
    assert sum(len(data) for name, data in files.items() if name != "MANIFEST.json") <= 300 << 10
    assert "explain.html" in files
    assert sum(row["why"] == "the bundle would be too large" for row in manifest["left_out"]) > 10


def test_only_later_attempts_where_asked_and_always_in_one_order(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    for number in (0, 1):
        folder = told.run.dir.attempt(number).path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "note.txt").write_text("x\n", encoding="utf-8")
    files, manifest, _ = _bundle(tmp_path, "llama-8b-sft", "--since-attempt", "1")
    assert "attempts/001/note.txt" in files
    assert "attempts/000/note.txt" not in files
    assert {"name": "attempts before 1", "why": "not asked for"} in manifest["left_out"]
    assert list(_bundle(tmp_path, "llama-8b-sft")[0]) == list(_bundle(tmp_path, "llama-8b-sft")[0])


def test_hostile_names_stay_in_their_folder(tmp_path: Path) -> None:
    told = make("hostile", tmp_path)
    folder = told.run.dir.attempt(0).path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ("a\n\u202e" + HOSTILE.replace("/", "_").replace("\0", ""))).write_text("x\n", encoding="utf-8")
    files, _, _ = _bundle(tmp_path, "hostile")
    assert all(name.isprintable() for name in files), sorted(files)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    def members() -> Any:
        yield Member("a", b"x" * 100)
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(StoreError, match="No space left"):
        write_archive(tmp_path / "b.tar.gz", "run", members())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", ["lots", "-1", "1K", "5X", ""])
def test_a_size_that_is_none_is_told(tmp_path: Path, size: str) -> None:
    done = CliRunner().invoke(command, ["x", "--max-size", size], env={"SLURMTRAIN_STORE": str(tmp_path)})
    assert done.exit_code == 2
    assert "--max-size" in done.output


def test_of_many_nodes_the_blamed_come_first(tmp_path: Path) -> None:
    told = make("failed", tmp_path)
    launch = told.run.dir.attempt(1).launch(0)
    for number in range(1, 60):
        (launch / "scene" / f"m{number}").mkdir(parents=True)
        (launch / "scene" / f"m{number}" / "big.txt").write_text("a line\n" * 3000, encoding="utf-8")
        (launch / f"node-m{number}.log").write_text("a line\n" * 100_000, encoding="utf-8")
    (launch / "node-n3.log").write_text("a line\n" * 100_000, encoding="utf-8")
    files, manifest, _ = _bundle(tmp_path, "llama-8b-sft", "--max-size", "700K")
    assert "attempts/001/launches/0/scene/n3/kernel/told.txt" in files
    assert "logs/train-1.log" in files
    assert 100_000 < len(files["attempts/001/launches/0/node-n3.log"]) < 200_000
    assert sum(row["name"].endswith(".log") for row in manifest["left_out"]) > 50
