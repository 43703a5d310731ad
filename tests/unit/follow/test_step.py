"""How far a launch came, by its heartbeat and its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmtrain.logs.progress import step_of
from slurmtrain.logs.step import StepTrail, read_step


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


def test_the_steps_of_a_training_and_not_those_of_an_epoch_or_an_evaluation(tmp_path: Path) -> None:
    """A launch that came to the third epoch has come further than one that came to the second."""
    log, beat = tmp_path / "log", tmp_path / "heartbeat"
    lightning = (
        b"\rEpoch %d:  50%%|# | %d/16 [00:01<00:01, 12.5it/s, loss=0.25]\rValidation: 9/900 [00:00<00:00, 9.0it/s]"
    )
    log.write_bytes(b"".join(lightning % (epoch, batch) for epoch in range(3) for batch in (8, 16)))
    assert read_step(beat, [(log, 0, None)]) == 48
    keras = b"\r%d/12 = 0s 50ms/step - loss: 0.5\b\b\b"
    log.write_bytes(b"".join(b"\nEpoch %d/9\n" % epoch + keras % 5 for epoch in (1, 2)))
    assert read_step(beat, [(log, 0, None)]) == 17
    trainer = b"\r 9%%|# | %d/400 [00:01<00:01, 12.5it/s]" + b"\r 9%%|# | %d/900 [00:01<00:01, 12.5it/s]" * 2
    log.write_bytes(trainer % (100, 5, 900) + trainer % (200, 5, 900))
    assert read_step(beat, [(log, 0, None)]) == 200
    bars = b"".join(b"\r 9%%|# | %d/100 [00:01<00:01, 12.5it/s]" % n for n in (90, 5, 40))
    log.write_bytes(bars)
    assert read_step(beat, [(log, 0, None)]) == 90, "which of them is further nobody knows"


def test_a_batch_of_an_epoch_or_of_an_evaluation_is_a_sign_that_it_moves(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("0: Epoch 2/9\n")
    trail = StepTrail(log, 0, None)
    lines = (
        "\r0: 5/12 = 0s 50ms/step - loss: 0.5",
        "\r0: 6/12 = 0s 50ms/step - loss: 0.5",
        "Validation: 9/90 [00:00<00:01, 9it/s]",
    )
    for line in lines:
        assert not trail.has_moved()
        with log.open("a") as stream:
            stream.write(line + "\n")
        assert trail.has_moved(), line
    with log.open("a") as stream:
        stream.write(lines[1] + "\n")
    assert not trail.has_moved(), "nothing new"
