"""Notes on specs that ask for the same thing twice: programs that restart or requeue by themselves beside slurmtrain.

Two who requeue one job cost an attempt each time, and the one who does not look at the cause repeats what cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.config.nodes import shown
from slurmtrain.core.spec import Spec

_MAX_SCRIPT = 256 << 10  # bytes that are read of a script
_SCRIPTS = (".py", ".sh", ".bash", ".sbatch", ".slurm")
_RESTARTS = re.compile(r"--max[-_]restarts[= ]\s*([1-9][0-9]{0,8})\b")
_REQUEUES = re.compile(r"\bscontrol['\", ]+requeue\b")
_SUBMITIT = re.compile(r"\bsubmitit_main\b|\bsubmitit\.core\.(?:_submit|submission)\b")
_SIGNAL_LINE = re.compile(r"^#SBATCH\s+(--signal[= ]\S{1,40})", re.MULTILINE)
_LIGHTNING = re.compile(r"^\s*(?:import|from)\s+(?:lightning|pytorch_lightning)\b", re.MULTILINE)
_NO_REQUEUE = re.compile(r"auto_requeue\s*=\s*False")
_REQUEUE_SIGNAL = re.compile(r"requeue_signal\s*=\s*(?:signal\.)?(?:Signals\.)?SIG([A-Z0-9]{2,10})\b")
_OWN_LIGHTNING = "USR1"  # SLURMEnvironment(requeue_signal=…), lightning 2
_OWN_SUBMITIT = "USR2"  # SUBMITIT_PREEMPT_SIGNAL, submitit 1.5


def double_notes(spec: Spec) -> list[str]:
    """What to change, one sentence each."""
    command = " ".join(spec.command)
    script = _read_script(spec)
    text = "\n".join([command, *spec.environment.setup, script])
    return [
        *_restart_notes(spec, text),
        *_submitit_notes(spec, command, text),
        *_requeue_notes(text),
        *_signal_notes(script),
        *_lightning_notes(spec, script),
    ]


def _restart_notes(spec: Spec, text: str) -> Iterator[str]:
    found = _RESTARTS.search(text)
    number = found[1] if found is not None else spec.environment.variables.get("PET_MAX_RESTARTS", "0")
    if (found is None and spec.launcher == "torchrun") or not re.fullmatch(r"[1-9][0-9]{0,8}", number):
        return  # launcher: torchrun gives the option itself, which goes before the variable
    yield (
        f"{'--max_restarts' if found is not None else 'PET_MAX_RESTARTS'}={number} starts a failed training {number} "
        "more times without looking at why, each time from the checkpoint that the launch began with, inside of each "
        "launch of slurmtrain, which restarts by cause: leave it at 0, and set retry.in_place"
    )


def _submitit_notes(spec: Spec, command: str, text: str) -> Iterator[str]:
    theirs = spec.environment.variables.get("SUBMITIT_PREEMPT_SIGNAL", _OWN_SUBMITIT).upper().removeprefix("SIG")
    if spec.stop.signal == theirs and (re.search(r"\bsubmitit\b", command) or _SUBMITIT.search(text)):
        yield (
            f"submitit saves and requeues its job itself when it gets {theirs}, which is stop.signal here: start the "
            "training without submitit, or set stop.signal: none"
        )


def _requeue_notes(text: str) -> Iterator[str]:
    if _REQUEUES.search(text):
        yield (
            "the program calls `scontrol requeue`; slurmtrain requeues the job by itself, within seconds and without a "
            "suspect node: leave that away, save, and exit with 0"
        )


def _signal_notes(script: str) -> Iterator[str]:
    found = _SIGNAL_LINE.search(script)
    if found is not None:
        yield (
            f"{shown(found[1])} in the script is not obeyed, no #SBATCH line there is: slurmtrain asks for Slurm's "
            "warning itself; set stop.warning_s, and leave stop.signal at USR2 where Lightning waits for USR1"
        )


def _lightning_notes(spec: Spec, script: str) -> Iterator[str]:
    if not _LIGHTNING.search(script) or _NO_REQUEUE.search(script):
        return
    named = _REQUEUE_SIGNAL.search(script)
    theirs = named[1] if named is not None else _OWN_LIGHTNING
    if spec.stop.signal.upper().removeprefix("SIG") == theirs:
        yield (
            f"Lightning requeues the job itself when it gets {theirs}, which is stop.signal here: with "
            "plugins=[SLURMEnvironment(auto_requeue=False)] slurmtrain alone does, or leave stop.signal at USR2"
        )


def _read_script(spec: Spec) -> str:
    """The first file of the command that looks like a script; empty where there is none or it cannot be read."""
    for word in spec.command[:8]:
        if word.endswith(_SCRIPTS):
            path = Path(spec.workdir or ".", word)
            try:
                if not path.is_file():
                    return ""
                with path.open("rb") as stream:
                    return stream.read(_MAX_SCRIPT).decode("utf-8", "replace")
            except (OSError, ValueError):
                return ""
    return ""
