"""Notes on specs that ask for the same thing twice: programs that restart or requeue by themselves beside slurmtrain.

Two who requeue one job cost an attempt each time, and the one who does not look at the cause repeats what cannot work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from slurmtrain.core.spec import Spec

_MAX_SCRIPT = 256 << 10  # bytes that are read of a script
_RESTARTS = re.compile(r"--max[-_]restarts[= ]\s*([1-9][0-9]{0,8})\b")
_REQUEUES = re.compile(r"\bscontrol['\", ]+requeue\b")
_LIGHTNING = re.compile(r"^\s*(?:import|from)\s+(?:lightning|pytorch_lightning)\b", re.MULTILINE)
_NO_REQUEUE = re.compile(r"auto_requeue\s*=\s*False")
_REQUEUE_SIGNAL = re.compile(r"requeue_signal\s*=\s*(?:signal\.)?(?:Signals\.)?SIG([A-Z0-9]{2,10})\b")
_OWN_LIGHTNING = "USR1"  # SLURMEnvironment(requeue_signal=…), lightning 2


def double_notes(spec: Spec) -> list[str]:
    """What to change, one sentence each."""
    command = " ".join(spec.command)
    script = _read_script(spec)
    text = "\n".join([command, *spec.environment.setup, script])
    return [*_restart_notes(command), *_requeue_notes(command, text), *_lightning_notes(spec, script)]


def _restart_notes(command: str) -> Iterator[str]:
    found = _RESTARTS.search(command)
    if found is not None:
        yield (
            f"--max_restarts={found[1]} starts a failed training {found[1]} more times without looking at why, inside "
            "of each launch of slurmtrain, which restarts by cause: leave it at 0, and set retry.in_place"
        )


def _requeue_notes(command: str, text: str) -> Iterator[str]:
    if re.search(r"\bsubmitit\b", command):
        yield (
            "submitit saves and requeues its job itself when it gets USR2, which is slurmtrain's signal, too: start "
            "the training without submitit, or set stop.signal: none"
        )
    if _REQUEUES.search(text):
        yield (
            "the program calls `scontrol requeue`; slurmtrain requeues the job by itself, within seconds and without a "
            "suspect node: leave that away, save, and exit with 0"
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
        if word.endswith((".py", ".sh")):
            path = Path(spec.workdir or ".", word)
            try:
                if not path.is_file():
                    return ""
                with path.open("rb") as stream:
                    return stream.read(_MAX_SCRIPT).decode("utf-8", "replace")
            except (OSError, ValueError):
                return ""
    return ""
