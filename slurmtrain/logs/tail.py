"""What the end of a log tells: its last lines, when they were printed, and whether the loss was still a number."""

from __future__ import annotations

from math import isfinite

from slurmtrain.core.findings import Findings
from slurmtrain.logs.lines import clean, find_time
from slurmtrain.logs.progress import loss_of

OWN_TAIL = 3


def read_tail(result: Findings, tail: bytes, end_line: int) -> None:
    """Fill in what the last bytes tell; `end_line` is the number after the last line."""
    lines = tail.decode("utf-8", "backslashreplace").split("\n")
    if lines and not lines[-1].strip():
        lines.pop()
    numbered = [(end_line - len(lines) + at, text) for at, text in enumerate(lines)]
    own_lines = 0
    for number, text in reversed(numbered[-400:]):
        part = text.rstrip("\r").rsplit("\r", 1)[-1][:2000]
        if "slurmstepd" in part or part.startswith("srun:") or "CANCELLED AT" in part:
            if result.stop_time is None and "CANCELLED AT" in part:
                result.stop_time = find_time(part)
        elif part.strip() and own_lines < OWN_TAIL:
            own_lines += 1
            result.end_time = find_time(part) if result.end_time is None else result.end_time
            if own_lines == 1:
                result.last_line, result.last_text = number, clean(part)
    _read_losses(result, [text for _, text in numbered])
    result.tail = [(number, clean(text.rsplit("\r", 1)[-1])) for number, text in numbered[-40:] if text.strip()]


def _read_losses(result: Findings, lines: list[str]) -> None:
    for text in reversed(lines):
        for part in reversed(text.rstrip("\r").split("\r")[-20:]):
            if "loss" not in part and "Loss" not in part:
                continue
            value = loss_of(part)
            if value is None:
                continue
            if isfinite(value):
                return
            result.nan_run += 1
