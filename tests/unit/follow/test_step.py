"""How far a launch came, by its heartbeat and its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.logs.progress import step_of
from slurmtrain.logs.step import read_step


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("step 120/500 loss 0.5", 120),
        ("{'loss': 0.1, 'step': 7}", 7),
        ("global_step=42 loss=1.0", 42),
        ("iter [30/1000] loss: 0.3", 30),
        (" 12%|#2  | 120/1000 [00:10<01:20, 11.0it/s]", 120),
        ("Epoch 3 loss 0.5", None),
        ("step 5 of the installation", None),
        ("downloading 120/1000 [00:10<01:20, 11.0MB/s]", None),
    ],
)
def test_the_step_of_a_line(line: str, step: int | None) -> None:
    assert step_of(line) == step


def test_the_highest_counts_within_the_launchs_own_output(tmp_path: Path) -> None:
    log, beat = tmp_path / "log", tmp_path / "heartbeat"
    before = b"0: step 900/1000 loss 0.1\n"
    log.write_bytes(
        before + b"1: step 11/1000 loss 0.1\r\x1b[K1: step 12/1000 loss 0.1\n0: step 10/1000 loss 0.1\nend\n"
    )
    assert read_step(beat, [(log, len(before), None)]) == 12
    assert read_step(beat, [(log, len(before), len(before) + 25)]) == 11
    beat.write_text(" 17 \n1764000000\n")
    assert read_step(beat, [(log, len(before), None)]) == 17
    beat.write_bytes(b"\x00\xff" * 100)
    assert read_step(beat, [(tmp_path / "none", 0, None)]) is None
    beat.unlink()
    beat.mkdir()
    assert read_step(beat, [(beat, 0, None)]) is None
