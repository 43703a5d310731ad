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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from slurmtrain.hosts.files import open_file
from slurmtrain.logs.lines import strip_ansi
from slurmtrain.logs.progress import HINTS, is_progress, loss_of, step_of
from slurmtrain.logs.window import read_end

_READ_BACK = 1 << 16  # bytes at the end of a launch's output: `status` reads them for each run
_READ_MARK, _MOST_MARKS = 1 << 14, 20
_YOUNG_S = 300.0
_LINE = 4096
_HEARTBEAT_BYTES = 4096
_MOST = 10**12
_LABEL = re.compile(rb"^\s*\d+: ")  # srun --label
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?(?:[eE][-+]?\d{1,3})?)"
_OF = re.compile(
    r"(?i)\b(?:global_step|steps?|iter(?:ation)?s?|(?:num_)?updates?)\b[\s:=#\[('\"]{0,6}\d{1,12}\s{0,12}(?:/|of)\s{0,12}(\d{1,12})\b"
)
_BAR = re.compile(r"\b(\d{1,12})/(\d{1,12}) \[[\d:]{4,9}<")
_KERAS = re.compile(r"^\W{0,8}(\d{1,12})/(\d{1,12})\W")
_EPOCH = re.compile(rf"(?i)\bepoch\b['\"]?[\s:=#\[(]{{0,4}}{_NUMBER}")
_OF_AN_EPOCH = re.compile(r"(?i)^\W{0,8}epoch\W{0,4}\d{1,9}(?:/\d{1,9})?\W{0,4}:")
_SAMPLES = (
    re.compile(rf"(?i){_NUMBER}\s?(?:samples?|examples?|images?|imgs?)\s?(?:/\s?s(?:ec(?:ond)?)?\b|per sec)"),
    re.compile(rf"(?i)\b(?:samples?|examples?|images?)(?:_per_sec(?:ond)?|/s(?:ec)?)['\"]?[\s:=]{{1,4}}{_NUMBER}"),
)
_PER_S = re.compile(rf"{_NUMBER}\s?it/s")
_S_PER = re.compile(rf"{_NUMBER}\s?s/it")
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
    heartbeat: Path, log: Path, begin: Begin, end: int | None = None, marks: Sequence[tuple[float, int]] = ()
) -> Told:
    """What the heartbeat tells, then the log; where neither tells a speed, the mean since the first step.

    ``marks``: seconds since the epoch, and how long the log was then. Never raises.
    """
    said = _read_heartbeat(heartbeat)
    told = said.filled_from(_read_log(log, begin.offset, end))
    if told.steps_per_s is None:
        told = replace(told, steps_per_s=_mean_speed(told, _first_step(log, begin, marks, told.at)))
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
    body = line[:_LINE].strip()
    if body.startswith("{") and (values := _parse_json(body)) is not None:
        return _from_values(values)
    if not is_progress(body):
        return Told()
    return Told(_step(body), _target(body), _number(_EPOCH, body), loss_of(body), _samples(body), _speed(body))


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


def _step(body: str) -> int | None:
    """A counter of the whole training: not the batch within an epoch."""
    if _OF_AN_EPOCH.match(body) or _KERAS.match(body):
        return None
    return step_of(body)


def _target(body: str) -> int | None:
    if _OF_AN_EPOCH.match(body) or _KERAS.match(body):
        return None
    found = _OF.search(body)
    if found is not None:
        return int(found[1])
    bar = _BAR.search(body)
    return int(bar[2]) if bar is not None else None


def _samples(body: str) -> float | None:
    told = next((value for pattern in _SAMPLES if (value := _number(pattern, body)) is not None), None)
    batch, ms = _BATCH.search(body), _number(_MS_PER, body)
    return told if told is not None or batch is None or not ms else int(batch[1]) * 1000 / ms


def _speed(body: str) -> float | None:
    """Steps per second; a bar's iterations are steps only where it counts those of the whole training."""
    if ms := _number(_MS_PER, body):
        return 1000 / ms
    if _OF_AN_EPOCH.match(body) or _KERAS.match(body):
        return None
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
    """The newest value of each kind. A counter that begins anew counts an epoch: then it tells no target."""
    try:
        data, written = read_end(path, start, end, _READ_BACK)
    except OSError:
        return Told()
    told, steps = Told(), []
    for one in _lines_told(data):
        steps += [] if one.step is None else [one.step]
        told = told.filled_from(one)
    if _begins_anew(steps):
        told = replace(told, step=None, target=None, steps_per_s=None)
    return replace(told, at=written) if told != Told() else told


def _lines_told(data: bytes) -> Iterator[Told]:
    """What each line tells, the newest first."""
    lines = [part for line in data.splitlines() for part in line.split(b"\r")]
    for line in reversed(lines):
        if HINTS.search(line.lower()):
            yield parse_told(_LABEL.sub(b"", strip_ansi(line[:_LINE])).decode("utf-8", "replace"))


def _first_step(log: Path, begin: Begin, marks: Sequence[tuple[float, int]], now: float | None) -> Begin:
    """The first mark with a step before it: what came until then was loading. Without such a mark, the launch's begin,
    unless that was a moment ago: a speed that counts the loading is worse than none."""
    for at, size in marks[:_MOST_MARKS]:
        if size <= begin.offset:
            continue
        with contextlib.suppress(OSError):
            data, _ = read_end(log, begin.offset, size, _READ_MARK)
            step = next((one.step for one in _lines_told(data) if one.step is not None), None)
            if step is not None:
                return Begin(size, step, at)
    young = bool(marks) and begin.at is not None and now is not None and now - begin.at < _YOUNG_S
    return Begin() if young else begin


def _begins_anew(newest_first: Iterable[int]) -> bool:
    """Whether a counter fell to its beginning; ranks that are a few steps apart do not look like that."""
    steps = list(newest_first)
    return any(after * 2 < before and before > 4 for after, before in pairwise(steps))


def _mean_speed(told: Told, begin: Begin) -> float | None:
    if told.step is None or told.at is None or begin.at is None or begin.step is None:
        return None
    took, made = told.at - begin.at, told.step - begin.step
    return made / took if took > 0 and made > 0 else None
