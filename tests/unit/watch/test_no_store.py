"""A watcher that is started before the first run."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from slurmtrain.cli.watch import command


def test_one_look_at_a_store_that_nobody_made_yet_finds_no_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--once", "--store", str(tmp_path / "none")])
    assert (result.exit_code, result.exception) == (0, None)
    assert "no runs in" in result.output
    assert not (tmp_path / "none").exists()
