"""Step, epoch, loss and speed from a heartbeat and from what frameworks print; and when it should end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurmtrain.logs.pace import Begin, Told, parse_told, read_pace
from slurmtrain.logs.progress import is_progress

TQDM = " 24%|██▍       | 120/500 [00:10<05:00,  1.20it/s, loss=0.123]"
MEGATRON = (
    " iteration      120/    500 | consumed samples:        30720 | elapsed time per iteration (ms): 2000.0 | "
    "learning rate: 1.500E-04 | global batch size:   256 | lm loss: 6.312E+00 | loss scale: 1.0 |"
)


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (TQDM, {"step": 120, "target": 500, "loss": 0.123, "steps_per_s": 1.2}),
        (" 24%|██▍ | 120/500 [00:10<05:00,  2.50s/it]", {"step": 120, "target": 500, "steps_per_s": 0.4}),
        (
            "Epoch 1:  50%|█████ | 50/100 [00:01<00:01, 49.20it/s, v_num=0, train_loss=0.500]",
            {"step": 150, "epoch": 1.0, "loss": 0.5, "steps_per_s": 49.2},  # Lightning counts epochs from 0
        ),
        (
            "Epoch 3/10:  50%|█████ | 50/100 [00:01<00:01, 49.20it/s]",
            {"step": 250, "target": 1000, "epoch": 3.0, "steps_per_s": 49.2},
        ),
        ("Validation DataLoader 0:  31%|█▏  | 5/16 [00:00<00:00, 39.69it/s]", {}),
        ("{'loss': 0.5312, 'learning_rate': 5e-05, 'epoch': 1.25}", {"loss": 0.5312, "epoch": 1.25}),
        (
            "{'loss': '0.5312', 'grad_norm': '0.6', 'learning_rate': '5e-05', 'epoch': '1.25'}",
            {"loss": 0.5312, "epoch": 1.25},
        ),
        (MEGATRON, {"step": 120, "target": 500, "loss": 6.312, "samples_per_s": 128.0, "steps_per_s": 0.5}),
        (
            '{"step": 120, "loss": 0.1, "epoch": 1, "samples_per_second": 12.3, "max_steps": 500}',
            {"step": 120, "target": 500, "loss": 0.1, "epoch": 1.0, "samples_per_s": 12.3},
        ),
        ("120/500 [=====>........] - ETA: 3s - loss: 0.5012 - accuracy: 0.8", {"loss": 0.5012}),
        (
            "Epoch 3 | step 120 of 500 | loss 2.5 | 812.3 samples/s",
            {"step": 120, "target": 500, "epoch": 3.0, "loss": 2.5, "samples_per_s": 812.3},
        ),
        ("step 7 loss inf", {"step": 7, "loss": float("inf")}),
        ("downloading 3/4 files", {}),
        ("RuntimeError: step 3/5 failed with loss 2", {}),
        ('{"step": true, "loss": "high", "epoch": null, "max_steps": 1e300}', {}),
    ],
)
def test_lines_of_frameworks(line: str, known: dict[str, Any]) -> None:
    assert parse_told(line) == Told(**known)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "train-1.log"


def read(log: Path, begin: Begin | None = None) -> Told:
    return read_pace(log.parent / "heartbeat", log, begin or Begin())


def test_the_newest_of_each_kind_behind_srun_labels_and_carriage_returns(log: Path) -> None:
    log.write_text(
        "slurmtrain: === attempt 0 launch 0 ===\n0: {'loss': 0.9, 'epoch': 1.0}\n"
        "1:  2%|▏ | 10/500 [00:10<05:00,  2.00it/s]\r 24%|██▍ | 120/500 [01:00<05:00,  2.00it/s]\n0: some words\n"
    )
    told = read(log)
    assert (told.step, told.target, told.loss, told.epoch) == (120, 500, 0.9, 1.0)
    assert told.at is not None
    assert told.expected_end == pytest.approx(told.at + 190)


def test_a_launch_before_is_not_read(log: Path) -> None:
    log.write_text("step 400/500 loss 0.1\n")
    start = log.stat().st_size
    with log.open("a") as stream:
        stream.write("step 20/500 loss 0.9\n")
    assert read(log, Begin(start)).step == 20


def test_a_counter_that_begins_anew_counts_an_epoch_and_no_end_is_expected(log: Path) -> None:
    log.write_text("".join(f"step {n}/100 loss 0.5 3.0it/s\n" for n in (60, 80, 100, 20, 40)))
    told = read(log)
    assert (told.step, told.target, told.expected_end, told.loss) == (None, None, None, 0.5)


KERAS_END = " ━━━━ 0s 50ms/step - accuracy: 0.5 - loss: 0.5012" + "\b" * 60
TRAINER_EVAL = (
    "  0%|          | 0/3 [00:00<?, ?it/s]\x1b[A\n 67%|██████▋   | 2/3 [00:00<00:00, 20.31it/s]\x1b[A\r     \r\x1b[A"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Keras: the epoch stands in a line before
        ("Epoch 2/5\n" + "".join(f"\r\x1b[1m {n}/12\x1b[0m{KERAS_END}" for n in (1, 7)), (19, 60, 0.5012, 20.0)),
        (f"\r 7/12{KERAS_END}", (None, None, 0.5012, None)),
        # the Trainer: bars of evaluations in between
        (
            f" 50%|█████     | 20/40 [00:01<00:01, 13.0it/s]\r{TRAINER_EVAL}"
            "{'eval_loss': '0.75', 'epoch': '1'}\n"
            f" 88%|████████▊ | 35/40 [00:02<00:00, 12.5it/s]\r{TRAINER_EVAL}",
            (35, 40, 0.75, 12.5),
        ),
        # Lightning: a bar for each epoch, and one for each validation
        (
            "".join(
                f"\rEpoch {epoch}:  50%|█ | 8/16 [00:01<00:01, 12.5it/s, loss=0.25]"
                f"\nValidation DataLoader 0:  31%|█▏  | 5/16 [00:00<00:00, 39.69it/s]\x1b[A"
                for epoch in range(3)
            ),
            (40, None, 0.25, 12.5),
        ),
        # srun cuts what has no end of line anywhere
        (
            "".join(f"\r {n}%|█ | {n}/500 [00:10<05:00, 4.0it/s, loss=0.5]" for n in range(100, 120))
            + "\r 24%|█ | 12\n0/500 [00:10<05:00, 4.0it/s, loss=0.5]"
            + "".join(f"\r {n}%|█ | {n}/500 [00:10<05:00, 4.0it/s, loss=0.5]" for n in range(121, 130)),
            (129, 500, 0.5, 4.0),
        ),
        (
            "".join(f"\rEpoch 12:  {n}0%|█ | {n}/10 [00:10<05:00, 4.0it/s, loss=0.5]" for n in range(4))
            + "\rEpoch 1\n2:  40%|█ | 4/10 [00:10<05:00, 4.0it/s, loss=0.5]"
            + "".join(f"\rEpoch 12:  {n}0%|█ | {n}/10 [00:10<05:00, 4.0it/s, loss=0.5]" for n in range(5, 9)),
            (128, None, 0.5, 4.0),
        ),
        # words that tell no end, and a bar that does; the bar of an evaluation does not
        ("step 120 loss 0.5\n 24%|██ | 121/500 [00:10<05:00, 4.0it/s]\n", (121, 500, 0.5, 4.0)),
        ("step 120 loss 0.5\n 24%|██ | 2/20 [00:10<05:00, 4.0it/s]\n", (120, None, 0.5, None)),
    ],
)
def test_the_counter_of_the_steps_is_told_from_others(
    log: Path, text: str, expected: tuple[int | None, int | None, float, float | None]
) -> None:
    log.write_text("".join(f"0: {line}\n" for line in text.split("\n")))
    told = read(log)
    assert (told.step, told.target, told.loss, told.steps_per_s) == expected


def test_without_a_speed_the_mean_since_the_launch_counts(log: Path) -> None:
    log.write_text("step 300/500 loss 0.5\n")
    now = time.time()
    os.utime(log, (now, now))
    told = read(log, Begin(0, 100, now - 100))
    assert told.steps_per_s == pytest.approx(2.0, abs=0.01)
    assert told.expected_end == pytest.approx(now + 100, abs=2)


def test_the_speed_is_measured_from_the_first_step_and_not_from_the_start(log: Path) -> None:
    """Loading took 50 s; then a step a second."""
    loading = "slurmtrain: === attempt 0 launch 0 ===\nloading the data\n"
    text = loading + "".join(f"step {n}/500 loss 0.5\n" for n in range(1, 21))
    log.write_text(text)
    os.utime(log, (1070, 1070))
    begin = Begin(0, 0, 1000.0)
    marks = [
        (1000.0, len(loading)),
        (1050.0, len(loading)),
        (1055.0, text.index("step 6/")),
        (1060.0, text.index("step 11/")),
    ]
    told = read_pace(log.parent / "heartbeat", log, begin, marks=lambda: marks)
    assert told.steps_per_s == pytest.approx(1.0)
    early = read_pace(log.parent / "heartbeat", log, begin, marks=lambda: marks[:2])
    assert (early.step, early.steps_per_s, early.expected_end) == (20, None, None), "not known yet: no number is better"


def test_the_heartbeat_comes_first_and_the_log_adds_what_it_lacks(log: Path) -> None:
    log.write_text("step 100/500 loss 0.5 12.5 samples/s\n")
    beat = {"at": 1000.0, "loss": 0.25, "total_steps": 200}
    (log.parent / "heartbeat").write_text(f"150 {json.dumps(beat)}\n")
    told = read(log, Begin(0, 100, 950.0))
    assert told == Told(150, 200, None, 0.25, 12.5, 1.0, 1000.0)
    assert told.expected_end == 1050.0


def test_what_cannot_be_read_tells_nothing(log: Path) -> None:
    os.mkfifo(log.parent / "heartbeat")
    os.mkfifo(log)
    assert read(log) == Told()
    (log.parent / "heartbeat").unlink()
    (log.parent / "heartbeat").write_bytes(b"\xff\xfe{ [" * 5000)
    assert read(log) == Told()


@pytest.mark.parametrize("line", ["1it/s " + "1" * 4000, "9it/s " + "1." * 2000, "1/1 [1" + "1.1." * 900])
def test_a_line_of_digits_keeps_nobody_busy(line: str) -> None:
    """A quarter of a second for each such line would come to more than any test may take."""
    assert {is_progress(line) for _ in range(3000)} == {True}
