"""``slurmtrain prune`` as a person types it: limits, settings, pins, the report, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from ended_runs import ended
from made_runs import Slurm

from slurmtrain.cli import prune as module
from slurmtrain.errors import SlurmUnavailableError, SpecError, UsageError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The made runs' clock is in the future of many a machine: the command's own is 100 days later."""
    slurm = Slurm()
    monkeypatch.setattr(module, "ask_slurm", lambda: slurm)
    monkeypatch.setattr("slurmtrain.cli.prune.time.time", lambda: 1_790_000_000.0 + 100 * 86400)
    return slurm


def _call(store: Path, *words: str) -> Result:
    return CliRunner().invoke(module.command, [*words, "--store", str(store)])


def test_the_report_says_what_goes_and_what_stays(tmp_path: Path, asked: Slurm) -> None:
    ended(tmp_path, "old-1")
    assert _call(tmp_path, "--pin", "old-1").output == "old-1: pinned\n"
    said = _call(tmp_path, "--older-than", "30d")
    assert (said.exit_code, said.stdout.splitlines()[0]) == (0, "old-1: kept: it is pinned")
    _call(tmp_path, "--unpin", "old-1")
    dry = _call(tmp_path, "--older-than", "30d", "--dry-run").stdout
    assert dry.startswith("old-1: would be deleted, ")
    assert (tmp_path / "runs" / "old-1").is_dir()
    rows: dict[str, Any] = json.loads(_call(tmp_path, "--older-than", "30d", "--json").stdout)
    assert [(row["run_id"], row["action"]) for row in rows["runs"]] == [("old-1", "deleted")]
    assert rows["freed_bytes"] > 0
    assert list((tmp_path / "runs").iterdir()) == []


def test_without_a_limit_nothing_is_deleted_and_that_is_said(tmp_path: Path, asked: Slurm) -> None:
    ended(tmp_path, "old-1")
    done = _call(tmp_path)
    assert "1 ended run: small files joined" in done.stdout
    assert "no limit was given" in done.stderr
    assert (tmp_path / "runs" / "old-1" / "plan.json").is_file()


def test_settings_hold_limits_and_the_command_line_wins(
    tmp_path: Path, asked: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(tmp_path / "store", "old-1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "slurmtrain.toml").write_text('[prune]\nolder_than = "30d"\nkeep_last = 5\n')
    assert "old-1: kept" in _call(tmp_path / "store", "--older-than", "90w", "--dry-run").stdout
    assert "would be deleted" in _call(tmp_path / "store", "--dry-run").stdout
    (tmp_path / "slurmtrain.toml").write_text('[prune]\nolder = "30d"\nmax_size = "much"\n')
    refused = _call(tmp_path / "store").exception
    assert isinstance(refused, SpecError)
    assert "did you mean 'older_than'" in str(refused)
    assert "like 500G" in str(refused)


@pytest.mark.parametrize(
    "words",
    [
        ["--older-than", "soon"], ["--older-than", "-1d"], ["--max-size", "1"], ["--keep-last", "0"],
        ["--keep-last", "٣"], ["--outside"], ["--pin"], ["--pin", "--unpin", "old-1"],
    ],
)  # fmt: skip
def test_nonsense_is_refused(tmp_path: Path, asked: Slurm, words: list[str]) -> None:
    ended(tmp_path, "old-1")
    done = _call(tmp_path, *words)
    assert done.exit_code == 2 or isinstance(done.exception, UsageError)
    assert (tmp_path / "runs" / "old-1" / "agent.pyz").exists() is False
    assert (tmp_path / "runs" / "old-1" / "plan.json").is_file()


def test_nothing_is_touched_while_slurm_does_not_answer(
    tmp_path: Path, asked: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ended(tmp_path, "old-1")
    before = sorted(run.dir.path.rglob("*"))

    def away(*_args: object) -> None:
        raise SlurmUnavailableError("slurmctld does not answer")

    monkeypatch.setattr(asked, "observe", away)
    assert isinstance(_call(tmp_path, "--older-than", "30d").exception, SlurmUnavailableError)
    assert sorted(run.dir.path.rglob("*")) == before
