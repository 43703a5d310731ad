"""The few sbatch options that matter to the Slurm in memory, from ``#SBATCH`` lines and the command line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import NoReturn

from slurmtrain.core.nodeset import expand_nodes
from slurmtrain.errors import SlurmRefusedError
from slurmtrain.testing.memory_model import Request

_SIGNAL = re.compile(r"(?:([BR]+):)?([A-Za-z0-9]+)(?:@([0-9]+))?")
_BEGIN = re.compile(r"now\+([0-9]+)(?:seconds?)?")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SlurmRefusedError(f"cannot submit: sbatch: {message}")


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    for flags in (
        ("-p", "--partition"), ("-N", "--nodes"), ("-t", "--time"), ("-x", "--exclude"), ("-w", "--nodelist"),
        ("-b", "--begin"), ("-a", "--array"), ("--signal",),
    ):  # fmt: skip
        parser.add_argument(*flags)
    parser.add_argument("-H", "--hold", action="store_true")
    parser.add_argument("--exclusive", action="store_true")
    parser.add_argument("--requeue", dest="requeue", action="store_true", default=True)
    parser.add_argument("--no-requeue", dest="requeue", action="store_false")
    return parser


def parse_request(script: str, options: Sequence[str]) -> Request:
    """``script`` is the batch script's text; an option of the command line beats its ``#SBATCH`` line."""
    words: list[str] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
        elif line.strip() and not line.startswith("#"):
            break
    found, _ = _build_parser().parse_known_args([*words, *options])
    warning = _SIGNAL.fullmatch(found.signal or "")
    begin = _BEGIN.fullmatch(found.begin or "")
    return Request(
        partition=found.partition or "",
        nodes=int((found.nodes or "1").split("-")[0]),
        time_limit=parse_time_limit(found.time) if found.time else None,
        requeue=found.requeue,
        hold=found.hold,
        exclusive=found.exclusive,
        excluded=tuple(expand_nodes(found.exclude or "")),
        required=tuple(expand_nodes(found.nodelist or "")),
        begin_after=timedelta(seconds=int(begin[1])) if begin else None,
        array_tasks=tuple(int(task) for task in _task_numbers(found.array)),
        signal=warning[2].upper().removeprefix("SIG") if warning else "",
        signal_batch=bool(warning and "B" in (warning[1] or "")),
        signal_lead=timedelta(seconds=int(warning[3] or 60)) if warning else timedelta(0),
        script=script,
    )


def _task_numbers(text: str | None) -> list[str]:
    """``0-2,5%1`` → 0, 1, 2, 5 (the bound of simultaneous tasks is not kept)."""
    if not text:
        return []
    return [name.removeprefix("t") for name in expand_nodes(f"t[{text.partition('%')[0]}]")]


def parse_time_limit(text: str) -> timedelta:
    """sbatch's ``--time``: minutes, ``m:s``, ``h:m:s``, ``d-h``, ``d-h:m``, ``d-h:m:s``."""
    days, dash, rest = text.partition("-")
    numbers = [int(part) for part in (rest if dash else text).split(":")]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return timedelta(days=int(days), hours=hours, minutes=minutes, seconds=seconds)
    if len(numbers) == 1:
        return timedelta(minutes=numbers[0])
    hours, minutes, seconds = numbers if len(numbers) == 3 else [0, *numbers]
    return timedelta(hours=hours, minutes=minutes, seconds=seconds)
