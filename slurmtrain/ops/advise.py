"""The next steps for a person: exact commands, fitting what the run is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from slurmtrain.core.causes import CAUSES
from slurmtrain.core.decision import RunState
from slurmtrain.core.diagnosis.model import Diagnosis
from slurmtrain.ops.interruption import is_interruption
from slurmtrain.ops.status import RunStatus


@dataclass(frozen=True, slots=True)
class Step:
    """``command`` is what to type, "" where there is nothing to type."""

    text: str
    command: str = ""


def advise(status: RunStatus, trouble: Diagnosis | None) -> Iterator[Step]:
    """What to do next, the likeliest first."""
    run = status.run_id
    if status.state is RunState.COMPLETED:
        yield Step("run it once more with the same parameters", f"slurmtrain restart {run}")
    elif status.state is RunState.HELD:
        yield Step("once the trouble is mended, let it go on from its newest checkpoint", f"slurmtrain release {run}")
        yield Step("or give it up", f"slurmtrain stop {run}")
    elif status.state in {RunState.FAILED, RunState.STOPPED, RunState.TERMINATED}:
        text = "start a new run with the same parameters"
        if trouble is not None and status.state is RunState.FAILED and _needs_change(trouble):
            text = "mend the cause first; then start a new run with the same parameters"
        yield Step(text, f"slurmtrain restart {run}")
    elif "watch --once" in status.reason:
        yield Step("let somebody decide about the job that ended", "slurmtrain watch --once")
    elif status.waiting is not None:
        yield from _while_waiting(status, run)
    else:
        yield Step("see its output as it comes", f"slurmtrain logs {run} --follow")
        yield Step("ask it to save and stop", f"slurmtrain stop {run}")
    if trouble is not None and not is_interruption(trouble) and status.state is not RunState.COMPLETED:
        yield Step("read the output of the launch that failed", f"slurmtrain logs {run} --tail 200")


def _needs_change(trouble: Diagnosis) -> bool:
    cause = CAUSES.get(trouble.cause)
    return cause is None or cause.klass in {"permanent", "needs-change"}


def _while_waiting(status: RunStatus, run: str) -> Iterator[Step]:
    waiting = status.waiting
    if waiting is not None and waiting.helps is True:
        yield Step("nothing: it starts by itself")
    elif waiting is not None and waiting.remedy:
        yield Step(waiting.remedy.replace("JOB", status.job_id or "JOB").replace("RUN", run))
    yield Step("give it up", f"slurmtrain stop {run}")
