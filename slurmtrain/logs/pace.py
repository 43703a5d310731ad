"""How far a training is, how fast, and when it should end: from its heartbeat and the end of its output.

Nothing is asked of the training: the usual forms of tqdm, the Hugging Face Trainer, Lightning, Keras, Megatron,
JSON lines and plain ``step 120/500 loss 0.1`` are read.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slurmtrain.hosts.files import open_file
from slurmtrain.logs.counters import Count, CountReader, choose_counters, count_plainly
from slurmtrain.logs.lines import strip_ansi
from slurmtrain.logs.progress import HINTS, is_progress, loss_of
from slurmtrain.logs.window import read_end

_READ_BACK = 1 << 16  # bytes at the end of a launch's output: `status` reads them for each run
_READ_MARK, _MOST_MARKS = 1 << 14, 20
_YOUNG_S = 300.0
_LINE = 4096
_HEARTBEAT_BYTES = 4096
_MOST = 10**12
_LABEL = re.compile(rb"^\s*\d+: ")  # srun --label
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?(?:[eE][-+]?\d{1,3})?)"
_EPOCH = re.compile(rf"(?i)\bepoch\b['\"]?[\s:=#\[(]{{0,4}}['\"]?{_NUMBER}")
_SAMPLES = (
    re.compile(rf"(?i){_NUMBER}\s?(?:samples?|examples?|images?|imgs?)\s?(?:/\s?s(?:ec(?:ond)?)?\b|per sec)"),
    re.compile(rf"(?i)\b(?:samples?|examples?|images?)(?:_per_sec(?:ond)?|/s(?:ec)?)['\"]?[\s:=]{{1,4}}{_NUMBER}"),
)
_PER_S = re.compile(rf"{_NUMBER}\s?it/s")
_S_PER = re.compile(rf"{_NUMBER}\s?s/it")
_KERAS_PER = re.compile(r"\b(\d{1,9})(us|ms|s)/step\b")
_MS_PER = re.compile(rf"(?i)elapsed time per iteration \(ms\):\s?{_NUMBER}")
_BATCH = re.compile(r"(?i)global batch size:\s{0,8}(\d{1,9})")
_NAMES = {
    "step": ("step", "global_step", "iteration", "iter", "num_updates"),
    "target": ("max_steps", "total_steps", "num_training_steps", "target_step", "train_iters"),
    "epoch": ("epoch",),
    "loss": ("loss", "train_loss", "train/loss", "lm_loss"),
    "samples_per_s": ("samples_per_s", "samples_per_sec", "samples_per_second", "train_samples_per_second"),
    "steps_per_s": ("steps_per_s", "steps_per_second", "train_steps_per_second"),
}


Mark = tuple[float, int]  # seconds since the epoch, and how long the log was then


@dataclass(frozen=True, slots=True)
class Told:
    """What is known, each None where nothing tells it. ``target`` is the last step of the whole training."""

    step: int | None = None
    target: int | None = None
    epoch: float | None = None
    loss: float | None = None  # also nan and inf
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    at: float | None = None  # when it was told, seconds since the epoch

    def filled_from(self, older: Told) -> Told:
        """What ``older`` knows beside this."""
        missing = {name: getattr(older, name) for name in self.__slots__ if getattr(self, name) is None}
        return replace(self, **missing)

    @property
    def expected_end(self) -> float | None:
        """When the target is reached at this speed; None where one of them is not known."""
        if self.step is None or self.target is None or not self.steps_per_s or self.at is None:
            return None
        left = (self.target - self.step) / self.steps_per_s
        return self.at + left if 0 <= left < 10 * 365 * 86400 else None


@dataclass(frozen=True, slots=True)
class Begin:
    """Where and when a launch began: its output in bytes, its step (None: not known), seconds since the epoch."""

    offset: int = 0
    step: int | None = None
    at: float | None = None


def read_pace(
    heartbeat: Path, log: Path, begin: Begin, end: int | None = None, marks: Callable[[], Sequence[Mark]] = tuple
) -> Told:
    """What the heartbeat tells, then the log; where neither tells a speed, the mean since the first step.

    ``marks`` are asked for only where they are needed. Never raises.
    """
    said = _read_heartbeat(heartbeat)
    told = said.filled_from(_read_log(log, begin.offset, end))
    if told.steps_per_s is None:
        told = replace(told, steps_per_s=_mean_speed(told, _first_step(log, begin, marks(), told.at)))
    return told


def read_save_time(heartbeat: Path) -> float | None:
    """Seconds that the last ``atomic_save`` took, as the heartbeat tells them. Never raises."""
    try:
        _, values, _ = _split_heartbeat(heartbeat)
    except OSError:
        return None
    seconds = _as_number(values.get("save_s"))
    return seconds if seconds is not None and seconds > 0 else None


def parse_told(line: str) -> Told:
    """What one line of output tells."""
    return _tell(line, CountReader())[0]


def _tell(line: str, reader: CountReader) -> tuple[Told, Count | None]:
    """What a line tells, and by which counter, if it counts steps."""
    body = line[:_LINE].strip()
    if body.startswith("{") and (values := _parse_json(body)) is not None:
        told = _from_values(values)
        return told, None if told.step is None else count_plainly(told.step, told.target)
    count = reader.read(body)
    if count is None and not is_progress(body):
        return Told(), None
    step, target, speed = (count.step, count.target, _speed(body)) if count is not None else (None, None, None)
    return Told(step, target, _number(_EPOCH, body), loss_of(body), _samples(body), speed), count


def _parse_json(body: str) -> dict[str, Any] | None:
    """A JSON object, or a dictionary as Python prints it, of plain values (the Trainer's)."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _from_values(values: dict[str, Any]) -> Told:
    found = {field: next((values[name] for name in names if name in values), None) for field, names in _NAMES.items()}
    numbers = {field: _as_number(value) for field, value in found.items()}
    if isinstance(found["loss"], float) and not math.isfinite(found["loss"]):
        numbers["loss"] = found["loss"]  # a training that diverged: worth more than no word
    whole = {field: int(number) for field in ("step", "target") if (number := numbers.pop(field)) is not None}
    return Told(**whole, **numbers)  # type: ignore[arg-type]


def _as_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
        return None
    return float(value)


def _samples(body: str) -> float | None:
    told = next((value for pattern in _SAMPLES if (value := _number(pattern, body)) is not None), None)
    batch, ms = _BATCH.search(body), _number(_MS_PER, body)
    return told if told is not None or batch is None or not ms else int(batch[1]) * 1000 / ms


def _speed(body: str) -> float | None:
    """Steps per second, of a line that counts steps."""
    if ms := _number(_MS_PER, body):
        return 1000 / ms
    if (keras := _KERAS_PER.search(body)) and int(keras[1]):
        return {"us": 1e6, "ms": 1e3, "s": 1.0}[keras[2]] / int(keras[1])
    if seconds := _number(_S_PER, body):
        return 1 / seconds
    return _number(_PER_S, body)


def _number(pattern: re.Pattern[str], body: str) -> float | None:
    found = pattern.search(body)
    return _finite(float(found[1])) if found is not None else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _read_heartbeat(path: Path) -> Told:
    try:
        first, values, written = _split_heartbeat(path)
    except OSError:
        return Told()
    told = _from_values({**values, **({"step": int(first)} if first.isascii() and first.isdigit() else {})})
    at = _as_number(values.get("at"))
    return replace(told, at=written if at is None else at) if told != Told() else told


def _split_heartbeat(path: Path) -> tuple[str, dict[str, Any], float]:
    """``1200 {"at": …, "loss": …}``: the first word, the values, when it was written. A plain number is fine, too.

    Raises ``OSError``.
    """
    with open_file(path) as stream:
        first, _, rest = stream.read(_HEARTBEAT_BYTES).decode("utf-8", "replace").strip().partition(" ")
        return first, _parse_json(rest) or {}, os.fstat(stream.fileno()).st_mtime


def _read_log(path: Path, start: int, end: int | None) -> Told:
    """The newest value of each kind, of the counter that counts the training's steps, if one does."""
    try:
        data, written = read_end(path, start, end, _READ_BACK)
    except OSError:
        return Told()
    told = _tell_all(data)
    return replace(told, at=written) if told != Told() else told


def _tell_all(data: bytes) -> Told:
    """The newest value of each kind, of the counter that counts the training's steps, if one does."""
    lines = [part for line in data.splitlines() for part in line.split(b"\r") if HINTS.search(part.lower())]
    reader, told = CountReader(), Told()
    rows = [_tell(_LABEL.sub(b"", strip_ansi(line[:_LINE])).decode("utf-8", "replace"), reader) for line in lines]
    counters = choose_counters(count for _, count in rows if count is not None)
    for one, count in reversed(rows):
        counts = count is None or count.counter in counters
        told = told.filled_from(one if counts else replace(one, step=None, target=None, steps_per_s=None))
    return told


def _first_step(log: Path, begin: Begin, marks: Sequence[Mark], now: float | None) -> Begin:
    """The first mark with a step before it: what came until then was loading. Without such a mark, the launch's begin,
    unless that was a moment ago: a speed that counts the loading is worse than none."""
    for at, size in marks[:_MOST_MARKS]:
        if size <= begin.offset:
            continue
        with contextlib.suppress(OSError):
            data, _ = read_end(log, begin.offset, size, _READ_MARK)
            step = _tell_all(data).step
            if step is not None:
                return Begin(size, step, at)
    young = bool(marks) and begin.at is not None and now is not None and now - begin.at < _YOUNG_S
    return Begin() if young else begin


def _mean_speed(told: Told, begin: Begin) -> float | None:
    if told.step is None or told.at is None or begin.at is None or begin.step is None:
        return None
    took, made = told.at - begin.at, told.step - begin.step
    return made / took if took > 0 and made > 0 else None
